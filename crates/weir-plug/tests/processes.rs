//! Two processes: memory that the client cannot write, signals, and a client that is killed.

use std::path::PathBuf;
use std::process::Command;

/// The example, which cargo builds beside this test.
fn example() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().unwrap().parent().unwrap().join("examples/count_for_others")
}

#[test]
fn other_processes_share_memory_and_are_signalled() {
    let output = Command::new(example()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "{\"number\":1} 1\n{\"number\":2} 2\n{\"number\":3} 3\n");
}
