//! Small disks for tests. Each test mounts its disk in a mount namespace of its own.

use std::fs::File;
use std::io::Write;
use std::process::Command;

/// Reports a skipped test, on standard error and in the log, as `skip` in the tests of other crates does.
fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = File::options().create(true).append(true).open(log).expect("skip log");
        writeln!(log, "{line}").expect("skip log");
    }
}

/// Runs the test again in a child process with its own mount namespace; `test` is its full path. In the child, returns
/// a directory on a new disk of this many MiB. In the parent, returns `None` once the child has passed. Without root,
/// skips the test and returns `None`.
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
        // If `test` were wrong, the child would run no test and succeed.
        assert!(output.status.success() && said.contains("1 passed"), "{said}{why}");
        return None;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"]).arg(scratch.path());
    assert!(mount.status().unwrap().success());
    Some(scratch)
}
