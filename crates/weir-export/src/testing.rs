//! Small disks for tests. Each test mounts its disk in a mount namespace of its own.

use std::fs::File;
use std::io::Write;
use std::process::Command;

/// Reports a skipped test, on standard error and in the log, as `skip` in the tests of other crates does.
fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = File::options().create(true).append(true).open(log).expect("skip log");
        // One call for the line, because several test processes may append to the file.
        log.write_all(line.as_bytes()).expect("skip log");
    }
}

/// Runs the test again in a child process with its own mount namespace; `test` is its full path. In the child, returns
/// a directory on a new disk of this many MiB. In the parent, returns `None` once the child has passed, and removes the
/// directory on which the child had mounted the disk. Without root, skips the test and returns `None`.
pub fn disk(test: &str, mib: u32) -> Option<tempfile::TempDir> {
    const MOUNT_POINT: &str = "WEIR_TEST_MOUNT_POINT";
    if !rustix::process::geteuid().is_root() {
        skip(test.rsplit("::").next().unwrap(), "needs root");
        return None;
    }
    let Some(mount_point) = std::env::var_os(MOUNT_POINT) else {
        let directory = tempfile::tempdir().unwrap();
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(MOUNT_POINT, directory.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        // If `test` were wrong, the child would run no test and succeed.
        assert!(output.status.success() && said.contains("1 passed"), "{said}{why}");
        return None;
    };
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"]).arg(&mount_point);
    assert!(mount.status().unwrap().success());
    Some(tempfile::tempdir_in(mount_point).unwrap())
}
