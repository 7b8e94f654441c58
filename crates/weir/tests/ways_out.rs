//! Commands that cannot run say why, once, and what to do. None of it needs rights.

use std::process::{Command, Stdio};

/// `weir` with these words, as it ended: the exit status, and standard error.
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
