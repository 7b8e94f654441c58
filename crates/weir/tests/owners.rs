//! Sources that are named by their owner: processes, containers and pods, captured in their network namespaces.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use common::docker::Docker;
use common::frames::{Sender, ipv4};
use common::tools::tool;
use common::{Ended, LIMIT, Run, bed, closes, folder, number, path, ready, settle, sh, weir};
use serde_json::Value;
use weir_lab::Testbed;
use weir_lab::testbed::{End, Running, ifindex, skip};

/// The name of the near end of an [`Owner`]'s link.
const NEAR: &str = "wown0";

/// A process in a new network namespace, which has no name, with an interface `eth0`.
struct Owner {
    process: Running,
    near: End,
}

impl Owner {
    /// Starts the process, and links its namespace with that of the bed's sender.
    fn start(bed: &Testbed) -> Owner {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "1000"]).stdin(Stdio::null());
        let process = bed.tx.spawn(command).expect("unshare");
        let own = fs::read_link("/proc/self/ns/net").expect("/proc");
        let pid = process.id();
        let netns = || fs::read_link(format!("/proc/{pid}/ns/net")).expect("it runs");
        let of_bed = bed.tx.run(|| fs::read_link("/proc/thread-self/ns/net")).unwrap().unwrap();
        wait_for("the new namespace", || netns() != own && netns() != of_bed);
        let near = link(bed, pid);
        Owner { process, near }
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends frames into the namespace.
    fn send(&self, frames: usize) {
        let sender = Sender::new(&self.near);
        (0..frames).for_each(|_| sender.send(&ipv4(60)));
        settle();
    }

    /// Ends the process and removes the link, as a container engine does. The namespace exists until its last process
    /// ends.
    fn end(mut self) {
        self.process.signal(libc::SIGKILL);
        self.process.wait().expect("it ends");
        sh(&self.near, &format!("ip link delete {NEAR} 2>/dev/null || true"));
    }
}

/// Creates an interface `eth0` in the network namespace of a process; returns the near end once it has a carrier.
fn link(bed: &Testbed, pid: u32) -> End {
    sh(
        &bed.tx,
        &format!(
            "ip link add {NEAR} type veth peer name eth0 netns {pid} && ip link set {NEAR} up && \
             nsenter --net --target {pid} ip link set eth0 up"
        ),
    );
    let index = bed.tx.run(|| ifindex(NEAR)).expect("the namespace is there").expect("it is there");
    let near = End { iface: NEAR.to_owned(), ifindex: index, ..bed.tx.clone() };
    near.wait_for_carrier().expect("it sees its peer");
    near
}

/// Runs a command such as `ip` in the network namespace of a process.
fn inside(bed: &Testbed, pid: u32, line: &str) {
    sh(&bed.tx, &format!("nsenter --net --target {pid} {line}"));
}

/// The names of addresses in a file, as tshark prints them: an address, a tab, a name.
fn hosts(file: &str) -> Vec<String> {
    let shown = tool("tshark", &["-r", file, "-q", "-z", "hosts"]);
    shown.lines().map(|line| line.trim().to_owned()).collect()
}

/// Waits until `eth0` in the network namespace of a process is captured.
fn wait_until_captured(bed: &Testbed, pid: u32) {
    let line = format!("nsenter --net --target {pid} ip -d link show eth0 || true");
    wait_for("that eth0 is captured", || sh(&bed.tx, &line).contains("promiscuity 1"));
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "waited for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// A container engine with one container, `web`, whose process can be changed.
struct FakeEngine {
    socket: PathBuf,
    pid: Arc<Mutex<u32>>,
}

impl FakeEngine {
    fn start(folder: &Path) -> FakeEngine {
        let (socket, pid) = (folder.join("engine.sock"), Arc::new(Mutex::new(0)));
        let (listener, own) = (UnixListener::bind(&socket).expect("a socket"), Arc::clone(&pid));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let mut request = [0; 512];
                let length = stream.read(&mut request).expect("a request");
                let is_web = request[..length].starts_with(b"GET /containers/web/json ");
                let pid = *own.lock().unwrap_or_else(PoisonError::into_inner);
                let container = format!(
                    r#"{{"Id":"3f2a91c0d7e45555","Name":"/web","State":{{"Running":{},"Pid":{pid}}},
                        "HostConfig":{{"NetworkMode":"bridge"}},"Config":{{"Image":"nginx:1"}}}}"#,
                    pid != 0
                );
                let (status, body) =
                    if is_web { ("200 OK", &container[..]) } else { ("404 Not Found", "[]") };
                let _ = write!(stream, "HTTP/1.0 {status}\r\n\r\n{body}");
            }
        });
        FakeEngine { socket, pid }
    }

    fn has(&self, pid: u32) {
        *self.pid.lock().unwrap_or_else(PoisonError::into_inner) = pid;
    }

    /// `weir` with this container engine.
    fn weir(&self, args: &str) -> Command {
        let mut command = weir(args);
        command.env("DOCKER_HOST", format!("unix://{}", self.socket.display()));
        command
    }
}

fn source(json: &Value) -> &Value {
    &json["sources"][0]
}

#[track_caller]
fn delivered(ended: Ended, frames: u64) -> Value {
    let json = ended.expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "delivered"), frames, "{json}");
    json
}

#[test]
fn root_an_interface_of_a_process_is_captured_in_its_namespace() {
    let test = "root_an_interface_of_a_process_is_captured_in_its_namespace";
    let Some(_alone) = ready(test, &["unshare", "nsenter"]) else { return };
    for engine in ["bpf", "af_packet"] {
        let bed = bed();
        let owner = Owner::start(&bed);
        let pid = owner.pid();
        let name = format!("netns:{pid}/eth0");
        let line = format!("capture {name} --engine {engine} --filter ip --json");
        let run = Run::capture_by(&bed.rx, weir(&line));
        owner.send(20);
        let json = delivered(run.stop(), 20);
        let source = source(&json);
        assert_eq!(source["source"], name);
        assert_eq!(source["owner"]["kind"], "process");
        assert_eq!(source["owner"]["name"], "sleep");
        assert_eq!(number(&source["owner"], "pid"), u64::from(pid));
        let inode = fs::read_link(format!("/proc/{pid}/ns/net")).expect("it runs");
        let shown = format!("net:[{}]", number(&source["owner"], "netns"));
        assert_eq!(inode.to_str(), Some(&shown[..]));
        owner.end();
    }
}

#[test]
fn root_a_container_is_captured_by_its_name_and_its_file_says_so() {
    let test = "root_a_container_is_captured_by_its_name_and_its_file_says_so";
    let Some(_alone) = ready(test, &["unshare", "nsenter", "tshark"]) else { return };
    let (bed, dir) = (bed(), folder());
    let (engine, owner) = (FakeEngine::start(dir.path()), Owner::start(&bed));
    engine.has(owner.pid());
    // The destination address of the frames, and another address.
    inside(&bed, owner.pid(), "ip addr add 192.0.2.2/24 dev eth0");
    inside(&bed, owner.pid(), "ip addr add fd77::2/64 dev eth0 nodad");
    let (_, text) = path(&dir, "web.pcapng");
    let line = format!("capture docker:web --filter ip --write {text} --json");
    let run = Run::capture_by(&bed.rx, engine.weir(&line));
    wait_until_captured(&bed, owner.pid());
    owner.send(20);
    let json = delivered(run.stop(), 20);
    let source = source(&json);
    assert_eq!(source["source"], "docker:web");
    let own = &source["owner"];
    assert_eq!(
        (&own["kind"], &own["name"], &own["image"]),
        (&"container".into(), &"web".into(), &"nginx:1".into())
    );
    assert_eq!(own["id"], "3f2a91c0d7e45555");
    // The loopback interface of the container is not captured.
    let interfaces = json["feeds"][0]["interfaces"].as_array().expect("interfaces");
    let names: Vec<&str> = interfaces.iter().filter_map(|own| own["name"].as_str()).collect();
    assert_eq!(names, ["docker:web/eth0"]);
    let fields = ["-Tfields", "-eframe.interface_name", "-eframe.interface_description"];
    let read = tool("tshark", &[&["-r", &text][..], &fields].concat());
    let lines: Vec<&str> = read.lines().collect();
    assert_eq!(lines.len(), 20);
    for line in lines {
        assert_eq!(line, "docker:web/eth0\tcontainer web (3f2a91c0d7e4), image nginx:1");
    }
    // Other tools can convert the file.
    let (_, other) = path(&dir, "other.pcap");
    tool("editcap", &["-F", "pcap", &text, &other]);
    let known = hosts(&text);
    for line in ["192.0.2.2\tweb", "fd77::2\tweb"] {
        assert!(known.contains(&line.to_owned()), "{line}: {known:?}");
    }
    assert!(!known.iter().any(|line| line.starts_with("127.")), "{known:?}");
    let resolved =
        tool("tshark", &["-N", "n", "-r", &text, "-Tfields", "-eip.src_host", "-eip.dst_host"]);
    assert!(resolved.lines().all(|line| line == "192.0.2.1\tweb"), "{resolved}");
    owner.end();
}

#[test]
fn root_a_capture_ends_with_its_container() {
    let test = "root_a_capture_ends_with_its_container";
    let Some(_alone) = ready(test, &["unshare", "nsenter"]) else { return };
    for source in ["docker:web", "docker:web/eth0"] {
        let (bed, dir) = (bed(), folder());
        let (engine, owner) = (FakeEngine::start(dir.path()), Owner::start(&bed));
        engine.has(owner.pid());
        let run = Run::capture_by(&bed.rx, engine.weir(&format!("capture {source} --count")));
        owner.end();
        run.end().refused(&[source, "vanished"]);
    }
}

#[test]
fn root_a_container_that_is_started_again_is_captured_again() {
    let test = "root_a_container_that_is_started_again_is_captured_again";
    let Some(_alone) = ready(test, &["unshare", "nsenter", "tshark"]) else { return };
    for source in ["docker:web", "docker:web/eth0"] {
        let (bed, dir) = (bed(), folder());
        let engine = FakeEngine::start(dir.path());
        let mut owner = Owner::start(&bed);
        inside(&bed, owner.pid(), "ip addr add 10.9.0.1/24 dev eth0");
        engine.has(owner.pid());
        let (_, file) = path(&dir, "out.pcapng");
        let line = format!("capture {source} --follow --filter udp --json --write {file}");
        let mut run = Run::capture_by(&bed.rx, engine.weir(&line));
        wait_until_captured(&bed, owner.pid());
        owner.send(10);
        for life in 1..=2 {
            owner.end();
            engine.has(0);
            let vanished = |run: &Run| run.stderr().matches("vanished; waiting").count() == life;
            run.wait_for("that it is gone", vanished);
            owner = Owner::start(&bed);
            inside(&bed, owner.pid(), &format!("ip addr add 10.9.1.{life}/24 dev eth0"));
            engine.has(owner.pid());
            let again = |run: &Run| run.stderr().matches("there; captured").count() >= life;
            run.wait_for("that it is there again", again);
            // The container is found before its interface exists.
            wait_until_captured(&bed, owner.pid());
            owner.send(10);
        }
        let json = delivered(run.stop(), 30);
        let own = self::source(&json);
        assert_eq!(number(own, "lives"), 3, "{json}");
        assert_eq!(number(&own["owner"], "pid"), u64::from(owner.pid()));
        // The container had another address after each start.
        let known = hosts(&file);
        for address in ["10.9.0.1", "10.9.1.1", "10.9.1.2"] {
            assert!(known.contains(&format!("{address}\tweb")), "{address}: {known:?}");
        }
        owner.end();
    }
}

#[test]
fn root_recorded_files_of_a_container_say_its_addresses_and_so_does_what_is_extracted() {
    let test = "root_recorded_files_of_a_container_say_its_addresses_and_so_does_what_is_extracted";
    let tools = ["unshare", "nsenter", "tshark", "editcap", "mergecap"];
    let Some(_alone) = ready(test, &tools) else { return };
    for flags in ["", "--compress zstd"] {
        let (bed, dir) = (bed(), folder());
        let engine = FakeEngine::start(dir.path());
        let mut owner = Owner::start(&bed);
        inside(&bed, owner.pid(), "ip addr add 192.0.2.2/24 dev eth0");
        engine.has(owner.pid());
        let (record, text) = path(&dir, "rec");
        let line =
            format!("capture docker:web --follow --filter udp --json --write {text}/ {flags}");
        let mut run = Run::capture_by(&bed.rx, engine.weir(&line));
        wait_until_captured(&bed, owner.pid());
        owner.send(10);
        owner.end();
        engine.has(0);
        run.wait_for("that it is gone", |run| run.stderr().contains("vanished; waiting"));
        owner = Owner::start(&bed);
        inside(&bed, owner.pid(), "ip addr add 192.0.2.3/24 dev eth0");
        inside(&bed, owner.pid(), "ip addr add fd77::2/64 dev eth0 nodad");
        engine.has(owner.pid());
        run.wait_for("that it is there again", |run| run.stderr().contains("there; captured"));
        wait_until_captured(&bed, owner.pid());
        owner.send(10);
        delivered(run.stop(), 20);
        let recorded = fs::read_dir(&record).expect("it is made");
        let recorded = recorded.map(|entry| entry.expect("a name").path());
        let recorded: Vec<_> =
            recorded.filter(|path| path.extension().is_some_and(|end| end == "pcapng")).collect();
        assert_eq!(recorded.is_empty(), !flags.is_empty(), "{recorded:?}");
        let of_web = |file: &str| {
            // The link-local addresses are left out: the kernel assigns others each time.
            let is_ours = |line: &String| line.ends_with("\tweb") && !line.starts_with("fe80:");
            let all = hosts(file).into_iter().filter(is_ours);
            all.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        let all = ["192.0.2.2\tweb", "192.0.2.3\tweb", "fd77::2\tweb"];
        for file in &recorded {
            let said = of_web(file.to_str().expect("UTF-8"));
            assert!(said == all || said == all[..1], "{file:?}: {said:?}");
        }
        let extracted = |flags: &str, name: &str| {
            let out = path(&dir, name).1;
            let done = weir(&format!("extract {text} --write {out} {flags}")).output();
            let done = done.expect("weir");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            out
        };
        let out = extracted("", "out.pcapng");
        assert_eq!(of_web(&out), all, "{flags}");
        let fields = ["-N", "n", "-r", &out, "-Tfields", "-eip.src_host", "-eip.dst_host"];
        let resolved = tool("tshark", &fields);
        assert_eq!(resolved.lines().count(), 20);
        assert!(resolved.lines().all(|line| line == "192.0.2.1\tweb"), "{resolved}");
        // Once: a file that is extracted from several files does not repeat a name.
        let bytes = fs::read(&out).expect("a file");
        assert_eq!(bytes.windows(8).filter(|part| *part == b"\xc0\0\x02\x02web\0").count(), 1);
        let pcap = extracted("--format pcap", "out.pcap");
        assert_eq!(of_web(&pcap), [""; 0]);
        // Other tools can convert the file.
        tool("editcap", &["-F", "pcap", &out, &path(&dir, "other.pcap").1]);
        tool("mergecap", &["-w", &path(&dir, "merged.pcapng").1, &out, &pcap]);
        owner.end();
    }
}

#[test]
fn root_a_daemon_captures_a_container_for_others() {
    let test = "root_a_daemon_captures_a_container_for_others";
    let Some(_alone) = ready(test, &["unshare", "nsenter"]) else { return };
    let (bed, dir) = (bed(), folder());
    let (engine, owner) = (FakeEngine::start(dir.path()), Owner::start(&bed));
    engine.has(owner.pid());
    let (config, config_text) = path(&dir, "weir.toml");
    let of = |name: &str, source: &str| {
        format!("[sources.{name}]\nsource = \"{source}\"\neverybody = true\n")
    };
    let sources = of("web", "docker:web") + &of("eth", "docker:web/eth0");
    fs::write(config, sources).expect("a file");
    let (_, socket) = path(&dir, "s");
    let line = format!("serve --config {config_text} --socket {socket}");
    let mut daemon = Run::start(&bed.rx, engine.weir(&line));
    daemon.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
    for source in ["host:web", "host:eth"] {
        let line = format!("capture {source} --socket {socket} --filter ip --json");
        let run = Run::capture_by(&bed.rx, weir(&line));
        wait_until_captured(&bed, owner.pid());
        owner.send(10);
        let status = Run::start(&bed.rx, weir(&format!("status --socket {socket} --json"))).end();
        let status = status.expect(0).json();
        let of_source = |own: &&Value| own["source"] == source["host:".len()..];
        let sources = status["sources"].as_array().expect("sources");
        let told = sources.iter().find(of_source).expect("it is there");
        assert_eq!(
            (&told["owner"]["kind"], &told["owner"]["name"]),
            (&"container".into(), &"web".into())
        );
        let json = delivered(run.stop(), 10);
        let own = &self::source(&json)["owner"];
        assert_eq!((&own["name"], &own["image"]), (&"web".into(), &"nginx:1".into()), "{json}");
        assert_eq!(number(own, "pid"), u64::from(owner.pid()));
    }
    daemon.stop().expect(0);
    owner.end();
}

#[test]
fn root_a_container_that_is_not_there_is_refused_with_the_way_out() {
    let test = "root_a_container_that_is_not_there_is_refused_with_the_way_out";
    let Some(_alone) = ready(test, &[]) else { return };
    let (bed, dir) = (bed(), folder());
    let engine = FakeEngine::start(dir.path());
    let refused = |args: &str, words: &[&str]| {
        Run::start(&bed.rx, engine.weir(args)).end().refused(words);
    };
    refused("capture docker:web", &["docker:web", "`docker start web`"]);
    refused("capture docker:other/eth0", &["docker:other", "no such container"]);
    refused("capture netns:4194305/eth0", &["netns:4194305", "no such process"]);
    engine.has(std::process::id());
    refused("capture docker:web/none0", &["docker:web/none0", "no such interface", "nsenter"]);
}

/// A cgroup such as the kubelet creates for a pod; removed when dropped.
struct PodCgroup {
    folder: PathBuf,
}

impl PodCgroup {
    /// Creates the cgroup in the first hierarchy in which that is possible. `None`: in no hierarchy.
    fn make(uid: &str) -> Option<PodCgroup> {
        ["/sys/fs/cgroup/unified", "/sys/fs/cgroup", "/sys/fs/cgroup/systemd"].iter().find_map(
            |root| {
                let root = Path::new(root);
                root.join("cgroup.procs").exists().then_some(())?;
                let folder =
                    root.join("kubepods-weir-test.slice").join(format!("kubepods-pod{uid}.slice"));
                fs::create_dir_all(&folder).ok()?;
                Some(PodCgroup { folder })
            },
        )
    }

    fn take_in(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).expect("it takes the process");
    }
}

impl Drop for PodCgroup {
    fn drop(&mut self) {
        // A process that was killed may still be in it for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                break;
            }
            sleep(Duration::from_millis(20));
        }
        let _ = self.folder.parent().map(fs::remove_dir);
    }
}

/// A folder of logs such as the kubelet creates; removed when dropped, with the parent if this created it.
struct PodLogs {
    made: Vec<PathBuf>,
}

impl PodLogs {
    fn make(name: &str) -> PodLogs {
        let all = [PathBuf::from("/var/log/pods"), Path::new("/var/log/pods").join(name)];
        let made = all.into_iter().filter(|folder| fs::create_dir(folder).is_ok()).collect();
        PodLogs { made }
    }
}

impl Drop for PodLogs {
    fn drop(&mut self) {
        self.made.iter().rev().for_each(|folder| _ = fs::remove_dir(folder));
    }
}

#[test]
fn root_a_pod_is_captured_by_its_name() {
    let test = "root_a_pod_is_captured_by_its_name";
    let Some(_alone) = ready(test, &["unshare", "nsenter"]) else { return };
    let uid = format!("0ddba11_{}", std::process::id());
    let Some(cgroup) = PodCgroup::make(&uid) else {
        return skip(test, "no cgroup can be made here");
    };
    let uid = uid.replace('_', "-");
    let name = format!("weir-test-{}", std::process::id());
    let _logs = PodLogs::make(&format!("default_{name}_{uid}"));
    let bed = bed();
    let owner = Owner::start(&bed);
    cgroup.take_in(owner.pid());
    for source in [format!("pod:{name}"), format!("pod:default/{name}/eth0")] {
        let line = format!("capture {source} --filter ip --json");
        let run = Run::capture_by(&bed.rx, weir(&line));
        wait_until_captured(&bed, owner.pid());
        owner.send(10);
        let json = delivered(run.stop(), 10);
        let own = &self::source(&json)["owner"];
        assert_eq!(own["kind"], "pod");
        assert_eq!(own["name"], format!("default/{name}"));
        assert_eq!(own["id"], uid);
    }
    owner.end();
}

/// The image of [`docker_with_a_container`].
const IMAGE: &str = "sleep:latest";

/// Docker in the namespace of the bed's sender, with a running container `weir-web`; skips the test if that is not
/// possible.
fn docker_with_a_container(test: &str, bed: &Testbed) -> Option<Docker> {
    let docker = Docker::start_in(test, &bed.tx)?;
    docker.image(Path::new("/bin/sleep"), "sleep");
    docker.run(&["run", "-d", "--name", "weir-web", IMAGE, "/sleep", "1000"]);
    Some(docker)
}

/// The host's interfaces that lead into containers.
fn veths(bed: &Testbed) -> Vec<String> {
    let shown = sh(&bed.tx, "ip -o link show master docker0");
    let name = |line: &str| line.split_whitespace().nth(1)?.split('@').next().map(str::to_owned);
    shown.lines().filter_map(name).collect()
}

#[test]
fn docker_a_veth_of_the_host_is_of_its_container() {
    let test = "docker_a_veth_of_the_host_is_of_its_container";
    let Some(_alone) = ready(test, &["tar", "capinfos", "tshark"]) else {
        return;
    };
    let (bed, dir) = (bed(), folder());
    let Some(docker) = docker_with_a_container(test, &bed) else { return };
    let (veths, (_, file)) = (veths(&bed), path(&dir, "out.pcapng"));
    let [veth] = &veths[..] else { panic!("one container has one: {veths:?}") };
    let id = docker.read(&["inspect", "--format", "{{.Id}}", "weir-web"]);
    let address =
        docker.read(&["inspect", "--format", "{{.NetworkSettings.IPAddress}}", "weir-web"]);
    for (host, name, said) in [
        (docker.host(), "weir-web", format!("weir-web ({}), image {IMAGE}", &id[..12])),
        // Without the engine's API, the name of the container is its id.
        ("unix:///nowhere".to_owned(), &id[..12], id[..12].to_owned()),
    ] {
        let mut command = weir(&format!("capture {veth} --json --write {file}"));
        command.env("DOCKER_HOST", host);
        let json = Run::capture_by(&bed.tx, command).stop().expect(0).json();
        let owner = &source(&json)["owner"];
        assert_eq!((&owner["kind"], &owner["name"]), (&"container".into(), &name.into()), "{json}");
        assert_eq!(owner["id"], id, "{json}");
        let shown = tool("capinfos", &["-I", &file]);
        assert!(shown.contains(&format!("Description = container {said}\n")), "{shown}");
        assert!(hosts(&file).contains(&format!("{address}\t{name}")), "{:?}", hosts(&file));
    }
}

#[test]
fn docker_a_container_is_captured_by_its_name_also_after_a_restart() {
    let test = "docker_a_container_is_captured_by_its_name_also_after_a_restart";
    let Some(_alone) = ready(test, &["tar"]) else { return };
    let bed = bed();
    let Some(docker) = docker_with_a_container(test, &bed) else { return };
    let mut command = weir("capture docker:weir-web --follow --json");
    // IGMP is excluded: a container's interface has an address, so it reports its multicast groups.
    command.args(["--filter", "ip and not igmp"]);
    command.env("DOCKER_HOST", docker.host());
    let mut run = Run::capture_by(&bed.rx, command);
    let bridge = || {
        let index = bed.tx.run(|| ifindex("docker0")).unwrap().expect("docker makes it");
        let end = End { iface: "docker0".to_owned(), ifindex: index, ..bed.tx.clone() };
        end.wait_for_carrier().expect("it has a container");
        end
    };
    let send = || {
        let pid = docker.read(&["inspect", "--format", "{{.State.Pid}}", "weir-web"]);
        wait_until_captured(&bed, pid.parse().expect("a process"));
        let sender = Sender::new(&bridge());
        (0..10).for_each(|_| sender.send(&ipv4(60)));
        settle();
    };
    send();
    docker.run(&["restart", "--time", "0", "weir-web"]);
    run.wait_for("that it is there again", |run| run.stderr().contains("there; captured"));
    send();
    let json = delivered(run.stop(), 20);
    let own = source(&json);
    assert_eq!(own["source"], "docker:weir-web");
    assert_eq!(own["owner"]["kind"], "container");
    assert_eq!(own["owner"]["name"], "weir-web");
    assert_eq!(own["owner"]["image"], IMAGE);
    assert_eq!(number(own, "lives"), 2);
    let wrong = {
        let mut command = weir("capture docker:weir-wep");
        command.env("DOCKER_HOST", docker.host());
        Run::start(&bed.rx, command).end()
    };
    wrong.refused(&["no such container; these run: weir-web"]);
}
