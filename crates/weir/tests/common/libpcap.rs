//! Unmodified programs that capture through libpcap: starts them, and waits until they capture.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::{NamedTempFile, TempDir};

use super::{Run, folder, path};

/// The tools of [`Tools::start`].
pub const NAMES: [&str; 3] = ["tcpdump", "dumpcap", "tshark"];

/// Puts the libweirpcap that was built for this test where `weir` looks for it; returns its path there.
pub fn library() -> &'static Path {
    static PLACED: OnceLock<PathBuf> = OnceLock::new();
    PLACED.get_or_init(|| {
        let beside = Path::new(env!("CARGO_BIN_EXE_weir")).parent().expect("a folder");
        let own = std::env::current_exe().expect("a program has a file");
        let library = beside.join("libweirpcap.so");
        // The file is replaced, not changed: another test may have loaded the one of that name.
        let copy = NamedTempFile::new_in(beside).expect("a file");
        fs::copy(own.with_file_name("libweirpcap.so"), copy.path()).expect("a copy");
        copy.persist(&library).expect("a new name");
        library
    })
}

/// The program of tests/preload/reader.c.
pub fn reader() -> &'static str {
    static BUILT: OnceLock<(TempDir, String)> = OnceLock::new();
    &BUILT.get_or_init(|| compiled("reader")).1
}

/// Compiles a program of tests/preload; returns its folder and its path.
pub fn compiled(name: &str) -> (TempDir, String) {
    let dir = folder();
    // Other users run the program, too.
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("permissions");
    let (_, program) = path(&dir, name);
    let source = format!("{}/tests/preload/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", &program, &source];
    let built = Command::new("cc").args(flags).arg("-lpcap").status().expect("cc starts");
    assert!(built.success(), "compiling {source}");
    (dir, program)
}

/// tcpdump, dumpcap and tshark that capture the same frames, each into its own file.
pub struct Tools {
    runs: [Run; 3],
    files: [PathBuf; 3],
}

impl Tools {
    /// Starts the tools and waits until they capture. Each ends after `frames` frames that pass the filter.
    pub fn start(
        dir: &TempDir,
        interface: &str,
        frames: usize,
        filter: &str,
        start: impl Fn(&[&str]) -> Run,
    ) -> Tools {
        let count = frames.to_string();
        let files = NAMES.map(|name| path(dir, &format!("{name}.cap")));
        let into = |number: usize| ["-i", interface, "-c", &count, "-w", &files[number].1];
        let lines: [&[&[&str]]; 3] = [
            &[&["tcpdump", "-n", "--nano", "-Z", "root", "-B", "65536"], &into(0), &[filter]],
            &[&["dumpcap", "-q", "-P"], &into(1), &["-f", filter]],
            &[&["tshark", "-Q", "-F", "pcapng"], &into(2), &["-f", filter]],
        ];
        let mut runs = lines.map(|line| start(&line.concat()));
        runs[0].wait_for("that it listens", |run| run.stderr().contains("listening on"));
        // dumpcap and tshark begin their file once the interface is open and the filter is set.
        for (run, (file, _)) in runs.iter_mut().zip(&files).skip(1) {
            let begins = || fs::metadata(file).is_ok_and(|file| file.len() > 0);
            run.wait_for("that it captures", |_| begins());
        }
        Tools { runs, files: files.map(|(file, _)| file) }
    }

    /// Standard error of each tool so far.
    pub fn said(&self) -> Vec<String> {
        self.runs.iter().map(Run::stderr).collect()
    }

    /// Waits until the tools have captured their frames, and checks that they lost none. Returns their files, in the
    /// order of [`NAMES`].
    pub fn end(self, frames: usize) -> [PathBuf; 3] {
        let [tcpdump, dumpcap, tshark] = self.runs.map(|run| run.end().expect(0));
        for said in [format!("{frames} packets captured"), "0 packets dropped by kernel".into()] {
            assert!(tcpdump.stderr.contains(&said), "{}", tcpdump.stderr);
        }
        assert!(dumpcap.stderr.contains("(100.0%)"), "{}", dumpcap.stderr);
        assert!(tshark.stderr.lines().all(|line| !line.contains("weir")), "{}", tshark.stderr);
        self.files
    }
}

/// Frames of a file that one of [`Tools`] wrote, pcap or pcapng.
pub fn frames(file: &Path) -> Vec<Vec<u8>> {
    super::tools::bytes_of(&super::tools::read(file).1)
}
