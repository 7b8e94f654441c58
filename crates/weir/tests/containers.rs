//! Containers read the frames that a daemon captures. They have the daemon's socket, but no rights and no network.

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::docker::Docker;
use common::tools::{all_read, in_time_order, read};
use common::{Run, bed, closes, folder, generate, number, program, ready, settle, weir};

const NOBODY: u32 = 65_534;

#[test]
fn docker_containers_without_rights_share_what_the_daemon_captures() {
    let test = "docker_containers_without_rights_share_what_the_daemon_captures";
    let Some(_alone) = ready(test, &[]) else { return };
    let Some(docker) = Docker::start(test) else { return };
    docker.image(Path::new(env!("CARGO_BIN_EXE_weir")), "weir");
    let bed = bed();
    for engine in ["bpf", "af_packet"] {
        let dir = tempfile::TempDir::new().expect("a folder");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("permissions");
        let file = format!(
            "[sources.lan]\nsource = \"wrx0\"\nengine = \"{engine}\"\nusers = [{NOBODY}]\nring_mib = 16\n"
        );
        let config = tempfile::NamedTempFile::new().expect("a file");
        fs::write(&config, file).expect("a file");
        let at = dir.path().display();
        let line = format!("serve --config {} --socket {at}/weir.sock", config.path().display());
        let mut daemon = Run::start(&bed.rx, weir(&line));
        daemon.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
        let container = |source: &str| {
            let mount = format!("{at}:/run/weir");
            let user = NOBODY.to_string();
            let command = docker.command(&[
                "run",
                "--rm",
                "--network=none",
                "--read-only",
                "--cap-drop=ALL",
                "--security-opt=no-new-privileges",
                "--user",
                &user,
                "--volume",
                &mount,
                "weir",
                "/weir",
                "capture",
                source,
                "--json",
            ]);
            Run::capture_by(&bed.rx, command)
        };
        let whole = container("host:lan");
        let quarters = [1, 2, 3, 4].map(|part| container(&format!("host:lan@{part}/4")));
        generate(&bed.tx, "--frames 20000 --rate 100kpps --flows 100");
        settle();
        let delivered = |run: Run| {
            let json = run.stop().expect(0).json();
            closes(&json);
            assert_eq!(number(&json, "lapped"), 0, "{engine}: {json}");
            number(&json, "delivered")
        };
        assert_eq!(delivered(whole), 20_000, "{engine}");
        let quarters = quarters.map(delivered);
        assert_eq!(quarters.iter().sum::<u64>(), 20_000, "{engine}: {quarters:?}");
        assert!(quarters.iter().all(|quarter| *quarter > 0), "{engine}: {quarters:?}");
        daemon.stop().expect(0);
    }
}

/// Docker's default seccomp profile refuses io_uring from version 25 on. The second run has a profile that does the
/// same, for older versions of Docker.
#[test]
fn docker_a_container_without_rights_records_what_the_daemon_captures() {
    let test = "docker_a_container_without_rights_records_what_the_daemon_captures";
    let Some(_alone) = ready(test, &[]) else { return };
    let Some(docker) = Docker::start(test) else { return };
    docker.image(Path::new(env!("CARGO_BIN_EXE_weir")), "weir");
    let bed = bed();
    let dir = folder();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(at("weir.toml"), "[sources.lan]\nsource = \"wrx0\"\nusers = [0]\nring_mib = 16\n")
        .expect("a file");
    let refusing = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["io_uring_setup"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}"#;
    fs::write(at("seccomp.json"), refusing).expect("a file");
    fs::create_dir(at("run")).expect("a folder");
    let line = format!("serve --config {} --socket {}", at("weir.toml"), at("run/weir.sock"));
    let mut daemon = Run::start(&bed.rx, weir(&line));
    daemon.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
    let socket = format!("{}:/run/weir", at("run"));
    for profile in [None, Some(format!("seccomp={}", at("seccomp.json")))] {
        let store = at(if profile.is_some() { "refused" } else { "own" });
        fs::create_dir(&store).expect("a folder");
        let data = format!("{store}:/data");
        let mut args = vec!["run", "--rm", "--network=none", "--read-only", "--cap-drop=ALL"];
        args.extend(["--security-opt=no-new-privileges", "--volume", &socket, "--volume", &data]);
        args.extend(profile.iter().flat_map(|profile| ["--security-opt", profile.as_str()]));
        args.extend(["weir", "/weir", "capture", "host:lan", "--write", "/data/", "--json"]);
        let recorder = Run::capture_by(&bed.rx, docker.command(&args));
        generate(&bed.tx, "--frames 20000 --rate 100kpps --flows 100");
        settle();
        let json = recorder.stop().expect(0).json();
        closes(&json);
        assert_eq!((number(&json, "delivered"), number(&json, "lapped")), (20_000, 0), "{json}");
        let note = json["recorder"]["note"].as_str().unwrap_or_default();
        if profile.is_some() {
            assert!(note.contains("the kernel refuses io_uring"), "{json}");
        }
        let out = at("out.pcapng");
        let extracted = weir(&format!("extract {store} --write {out}")).output().expect("weir");
        assert!(extracted.status.success(), "{}", String::from_utf8_lossy(&extracted.stderr));
        let (_, frames) = read(Path::new(&out));
        assert_eq!(frames.len(), 20_000, "{json}");
        in_time_order(&frames);
        all_read(Path::new(&out), &frames);
    }
    daemon.stop().expect(0);
}

/// In a PID namespace of its own, as in a container, the daemon sees clients outside of it with the process id 0.
#[test]
fn root_clients_that_the_daemon_has_no_process_id_of_are_known_by_their_user() {
    let test = "root_clients_that_the_daemon_has_no_process_id_of_are_known_by_their_user";
    let Some(_alone) = ready(test, &["unshare"]) else { return };
    let bed = bed();
    let dir = tempfile::TempDir::new().expect("a folder");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let file = "[sources.lan]\nsource = \"wrx0\"\nusers = [0]\n\
        [sources.other]\nsource = \"wrx0\"\nusers = [65534]\n";
    fs::write(at("weir.toml"), file).expect("a file");
    // `unshare` ignores signals; when it is killed, the daemon is killed, too.
    let mut line = program("unshare --pid --fork --kill-child");
    line.arg(env!("CARGO_BIN_EXE_weir")).args(["serve", "--config", &at("weir.toml")]);
    line.args(["--socket", &at("weir.sock")]);
    let mut daemon = Run::start(&bed.rx, line);
    daemon.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
    let client =
        |source: &str| weir(&format!("capture {source} --json --socket {}", at("weir.sock")));
    let lan = Run::capture_by(&bed.rx, client("host:lan"));
    let refused = Run::start(&bed.rx, client("host:other")).end().expect(2).stderr;
    assert!(refused.contains("there is no source 'other'"), "{refused}");
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    let json = lan.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "delivered"), 1000, "{json}");
}

#[test]
fn docker_the_demo_ends_with_a_container_that_reads_from_a_daemon() {
    let test = "docker_the_demo_ends_with_a_container_that_reads_from_a_daemon";
    let Some(_alone) = ready(test, &[]) else { return };
    let Some(docker) = Docker::start(test) else { return };
    let dir = tempfile::TempDir::new().expect("a folder");
    let demo = |host: &str| {
        let mut command = weir("demo --duration 1s --write");
        command.arg(dir.path().join("demo.pcapng")).env("DOCKER_HOST", host);
        let output = command.output().expect("weir");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}{errors}");
        said
    };
    let said = demo(&docker.host());
    assert!(said.contains("the container counted        50 000: the same, to the frame"), "{said}");
    let images = String::from_utf8_lossy(&docker.run(&["images", "-q"]).stdout).into_owned();
    assert_eq!(images, "", "it left an image");
    drop(docker);
    let said = demo("unix:///nowhere");
    assert!(said.contains("No Docker daemon answers here"), "{said}");
}
