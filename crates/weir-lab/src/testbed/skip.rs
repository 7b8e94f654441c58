//! Skips tests that need root or a missing tool. A skipped test is reported and counted; it never passes silently.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;

/// Prints `SKIPPED <test>: <reason>` on stderr, and appends that line to the file named by
/// `WEIR_SKIP_LOG`, if set, because the test harness hides the stderr of tests that pass.
pub fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}\n");
    eprint!("{line}");
    if let Some(path) = env::var_os("WEIR_SKIP_LOG") {
        // The line is written by one call, because several test processes may append to the same file.
        let log = OpenOptions::new().create(true).append(true).open(path);
        if let Err(error) = log.and_then(|mut log| log.write_all(line.as_bytes())) {
            eprintln!("WEIR_SKIP_LOG: {error}");
        }
    }
}

/// Returns whether the test runs as root. If not, reports the test as skipped.
pub fn require_root(test: &str) -> bool {
    // SAFETY: takes no arguments and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        skip(test, "needs root");
    }
    root
}

/// Returns whether this program is on the PATH. If not, reports the test as skipped.
pub fn require_tool(test: &str, tool: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    if !found {
        skip(test, &format!("needs the program {tool}"));
    }
    found
}
