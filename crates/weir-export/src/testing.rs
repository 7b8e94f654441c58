//! Disks of a few MiB for tests, mounted in a mount namespace of the test's own.

use std::fs::File;
use std::io::Write;
use std::process::Command;

/// As `skip` in the tests of other crates: aloud, and into the log.
fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = File::options().create(true).append(true).open(log).expect("skip log");
        writeln!(log, "{line}").expect("skip log");
    }
}

/// A directory with a disk of its own, of so many MiB, in the process that runs this test (named by its whole path) in
/// mounts of its own; `None` in the one that started it, and has seen it pass.
pub fn disk(test: &str, mib: u32) -> Option<tempfile::TempDir> {
    const MARK: &str = "WEIR_TEST_IN_A_MOUNT_NAMESPACE";
    if !rustix::process::geteuid().is_root() {
        skip(test.rsplit("::").next().unwrap(), "needs root");
        return None;
    }
    if std::env::var_os(MARK).is_none() {
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(MARK, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        // A name that is wrong is no test, and passes.
        assert!(output.status.success() && said.contains("1 passed"), "{said}{why}");
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"]).arg(scratch.path());
    assert!(mount.status().unwrap().success());
    Some(scratch)
}
