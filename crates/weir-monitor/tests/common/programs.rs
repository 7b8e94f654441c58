//! Programs that a test needs and a machine may not have.

use std::fs::OpenOptions;
use std::io::Write;

/// Whether these programs are installed. If not, reports that the test is skipped.
pub fn has(test: &str, programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here =
        |name: &&str| std::env::split_paths(&path).any(|folder| folder.join(name).is_file());
    let Some(missing) = programs.iter().find(|name| !is_here(name)) else { return true };
    let line = format!("SKIPPED {test}: {missing} is missing");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let mut log = OpenOptions::new().create(true).append(true).open(log).expect("a log");
        log.write_all(format!("{line}\n").as_bytes()).expect("a line");
    }
    false
}
