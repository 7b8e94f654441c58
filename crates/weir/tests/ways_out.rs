//! Commands that cannot run say why, once, and what to do. Only the `root_` test needs rights.

use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;

/// The id of Debian's user nobody.
const NOBODY: u32 = 65_534;

/// Runs `weir` with these arguments; returns its exit status and standard error.
fn weir(words: &[&str]) -> (Option<i32>, String) {
    ended(Command::new(env!("CARGO_BIN_EXE_weir")).args(words))
}

fn ended(command: &mut Command) -> (Option<i32>, String) {
    let ended = command.env("LC_ALL", "C").stdin(Stdio::null()).output().expect("weir");
    (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

#[test]
fn no_daemon_is_told_with_the_reason_once() {
    for line in [
        "status --socket /no/such/socket",
        "capture host:lan --socket /no/such/socket",
        "block 10.0.0.1 --feed ids --socket /no/such/socket",
    ] {
        let (code, says) = weir(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(code, Some(2), "{line}: {says}");
        assert_eq!(says.matches("No such file or directory").count(), 1, "{line}: {says}");
        assert!(says.contains("start one with `weir serve`"), "{line}: {says}");
    }
}

/// Starts a daemon that refuses every feed. Returns the number of its clients so far.
fn refusing_daemon(socket: &Path) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(socket).expect("a socket");
    let clients = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&clients);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = refuse(stream.expect("a client"));
        }
    });
    clients
}

fn refuse(mut stream: UnixStream) -> io::Result<()> {
    for answer in [
        r#""id": 1, "result": {"version": 1, "name": "test", "applications": ["capture"]}"#,
        r#""id": 2, "error": {"code": -32000, "message": "there is no source nix"}"#,
    ] {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        stream.read_exact(&mut vec![0; u32::from_be_bytes(length) as usize])?;
        let answer = format!(r#"{{"jsonrpc": "2.0", {answer}}}"#);
        let length = u32::try_from(answer.len()).expect("it is short").to_be_bytes();
        stream.write_all(&[&length, answer.as_bytes()].concat())?;
    }
    Ok(())
}

#[test]
fn a_refused_feed_is_told_with_the_reason_once_and_asked_for_each_second() {
    let folder = folder();
    let socket = folder.path().join("s");
    let clients = refusing_daemon(&socket);
    let path = socket.display().to_string();
    let line = ["capture", "host:nix", "--follow", "--duration", "2500ms", "--socket", &path];
    let (code, says) = weir(&line);
    assert_eq!(code, Some(0), "{says}");
    let told = says.matches("host:nix: refused: there is no source nix; trying again").count();
    assert_eq!((told, says.contains("vanished")), (1, false), "{says}");
    let clients = clients.load(Ordering::Relaxed);
    assert!((2..=4).contains(&clients), "{clients} attempts in 2.5 s");

    // Without --follow, that is an error.
    let (code, says) = weir(&["capture", "host:nix", "--socket", &path]);
    assert_eq!(code, Some(2), "{says}");
    assert!(says.contains("there is no source nix"), "{says}");
}

#[test]
fn a_refusal_after_a_wait_for_the_daemon_is_told_with_the_reason() {
    let folder = folder();
    let socket = folder.path().join("s");
    let path = socket.display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["capture", "host:nix", "--follow", "--duration", "4s", "--socket", &path]);
    command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("weir");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut says = String::new();
    while !says.contains("no daemon answers") {
        says += &(lines.next().expect("it says so").expect("text") + "\n");
    }
    refusing_daemon(&socket);
    lines.for_each(|line| says += &(line.expect("text") + "\n"));
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{says}");
    let waited = says.find("no daemon answers");
    let refused = says.find("host:nix: refused: there is no source nix; trying again");
    assert!(waited.is_some() && waited < refused, "{says}");
    assert_eq!(says.matches("refused").count(), 1, "{says}");
}

#[test]
fn a_daemon_that_is_waited_for_is_named_once() {
    let folder = folder();
    let path = folder.path().join("s").display().to_string();
    let line = ["capture", "host:lan", "--follow", "--duration", "500ms", "--socket", &path];
    let (code, says) = weir(&line);
    assert_eq!(code, Some(0), "{says}");
    let told = format!(
        "host:lan: no daemon answers at {path} yet (No such file or directory); waiting for one"
    );
    assert_eq!(says.matches(&told).count(), 1, "{says}");
    assert!(!says.contains("went away"), "{says}");
}

#[test]
fn a_demo_makes_one_file_that_can_be_opened() {
    let folder = folder();
    let there = folder.path().display().to_string();
    for write in ["-", &there, &format!("{there}/new/")] {
        let line = ["demo", "--replay", "--write", write];
        let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(line).output().expect("weir");
        let says = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{write}: {says}");
        assert!(says.contains("name a file: --write demo.pcapng"), "{write}: {says}");
    }
    assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
}

/// A folder that only its owner and root may write to.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("its mode");
    folder
}

/// `weir serve` with these paths of the socket and the configuration file.
fn serve(program: &Path, socket: &Path, config: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("serve").arg("--socket").arg(socket).arg("--config").arg(config);
    command
}

#[test]
fn a_daemon_without_its_file_says_how_to_begin() {
    let folder = folder();
    let missing = folder.path().join("missing.toml");
    let program = Path::new(env!("CARGO_BIN_EXE_weir"));
    let (code, says) = ended(&mut serve(program, &folder.path().join("s"), &missing));
    assert_eq!(code, Some(2), "{says}");
    for word in [
        "missing.toml: there is no such file",
        "[sources.eth0]",
        "examples/weir.toml",
        "--config PATH",
    ] {
        assert!(says.contains(word), "not '{word}': {says}");
    }
    assert!(!says.contains("os error"), "{says}");
}

#[test]
fn a_folder_that_is_missing_is_not_made() {
    let folder = folder();
    let (missing, config) = (folder.path().join("missing"), folder.path().join("weir.toml"));
    fs::write(&config, "").expect("a file");
    let program = Path::new(env!("CARGO_BIN_EXE_weir"));
    let (code, says) = ended(&mut serve(program, &missing.join("s"), &config));
    assert_eq!(code, Some(2), "{says}");
    for word in ["--socket", "there is no folder", "install -d", "choose another path"] {
        assert!(says.contains(word), "not '{word}': {says}");
    }
    assert!(!missing.exists());
}

#[test]
fn root_a_user_who_may_not_serve_is_told_what_helps() {
    if !weir_lab::testbed::require_root("root_a_user_who_may_not_serve_is_told_what_helps") {
        return;
    }
    let (roots, own) = (folder(), folder());
    // A copy, because that user may have no access to the build's folder.
    let (built, program) = (env!("CARGO_BIN_EXE_weir"), roots.path().join("weir"));
    fs::hard_link(built, &program)
        .or_else(|_| fs::copy(built, &program).map(drop))
        .expect("a copy");
    chown(own.path(), Some(NOBODY), Some(NOBODY)).expect("its owner");
    let (file, secret) = (own.path().join("weir.toml"), roots.path().join("secret.toml"));
    fs::write(&file, "").expect("a file");
    fs::write(&secret, "").expect("a file");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("its mode");
    for (socket, config, what) in [
        (roots.path().join("s"), &file, "--socket"),
        (own.path().join("s"), &secret, "secret.toml: it cannot be read"),
    ] {
        let (code, says) = ended(serve(&program, &socket, config).uid(NOBODY).gid(NOBODY));
        assert_eq!(code, Some(2), "{says}");
        for word in [what, "run it as root", "systemctl start weir", "--socket PATH"] {
            assert!(says.contains(word), "not '{word}': {says}");
        }
        assert_eq!(says.matches("Permission denied").count(), 1, "{says}");
    }
}

#[test]
fn a_misspelt_flag_of_run_is_named_and_is_no_tool() {
    let (code, says) = weir(&["run", "--sockt", "/tmp/s", "tcpdump"]);
    assert_eq!(code, Some(2), "{says}");
    assert!(says.contains("'--sockt'") && says.contains("--socket"), "{says}");
    assert!(!says.contains("no such program"), "{says}");
    // Flags after the tool belong to the tool, with or without `--`.
    for words in [
        &["run", "no-such-tool", "--sockt"][..],
        &["run", "--", "no-such-tool", "--sockt", "-x"],
        &["run", "--feed", "ids", "no-such-tool", "--feed", "x", "--help"],
    ] {
        let (code, says) = weir(words);
        assert_eq!(code, Some(2), "{words:?}: {says}");
        assert!(says.contains("no-such-tool: there is no such program"), "{words:?}: {says}");
    }
}

#[test]
fn the_environment_says_where_the_daemon_is_and_a_flag_says_otherwise() {
    let weir_at = |socket: &str, line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        ended(command.args(line.split(' ')).env("WEIR_SOCKET", socket))
    };
    let asking = ["status", "capture host:lan", "block 10.0.0.1 --feed ids"];
    for line in asking {
        for (socket, flag, at) in [
            ("/no/such/place", "", "/no/such/place"),
            ("/no/such/place", " --socket /no/such/flag", "/no/such/flag"),
        ] {
            let (code, says) = weir_at(socket, &format!("{line}{flag}"));
            assert_eq!(code, Some(2), "{line}: {says}");
            assert!(
                says.contains(&format!("no daemon answers at {at} (No such file or directory);")),
                "{line}: {says}"
            );
        }
        let verb = line.split(' ').next().expect("a verb");
        let help = Command::new(env!("CARGO_BIN_EXE_weir")).args([verb, "--help"]).output();
        let help = String::from_utf8(help.expect("weir").stdout).expect("text");
        assert!(help.contains("$WEIR_SOCKET"), "{help}");
    }
    // The variable is ignored by commands that do not use a daemon, beside `--control`, and if it is empty.
    let (code, says) = weir_at("/no/such/place", "capture gen: --frames 1");
    assert_eq!(code, Some(0), "{says}");
    let (_, says) = weir_at("/no/such/place", "status --control /no/such/control");
    assert!(says.contains("/no/such/control: no capture listens there"), "{says}");
    let (code, says) = weir_at("", "capture gen: --frames 1");
    assert_eq!(code, Some(0), "{says}");
    let (code, says) = weir_at("", "extcap --extcap-interfaces");
    assert_eq!(code, Some(0), "{says}");
}
