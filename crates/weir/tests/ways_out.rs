//! Commands that cannot run say why, once, and what to do. Only the `root_` test needs rights.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

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
