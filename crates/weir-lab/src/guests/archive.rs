//! Writes an initramfs: a cpio archive in `newc` format.
//!
//! Source: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

/// Name and contents of an entry are padded to a multiple of this.
const ALIGN: usize = 4;
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive under construction. Names have no leading `/`.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: Vec<String>,
}

impl Archive {
    /// Adds a folder and its parents, unless they exist.
    pub(super) fn folder(&mut self, name: &str) {
        if name.is_empty() || self.folders.iter().any(|known| known == name) {
            return;
        }
        self.parent_of(name);
        self.folders.push(name.to_owned());
        self.entry(name, FOLDER | 0o755, &[]);
    }

    /// Adds a file, executable or not, and its parent folders.
    pub(super) fn file(&mut self, name: &str, is_program: bool, contents: &[u8]) {
        self.parent_of(name);
        let rights = if is_program { 0o755 } else { 0o644 };
        self.entry(name, FILE | rights, contents);
    }

    /// Adds a symbolic link, and its parent folders.
    pub(super) fn link(&mut self, name: &str, target: &str) {
        self.parent_of(name);
        self.entry(name, LINK | 0o777, target.as_bytes());
    }

    /// Returns the whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn parent_of(&mut self, name: &str) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.folder(parent);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entries += 1;
        let length = |bytes: usize| u32::try_from(bytes).expect("no file of 4 GiB");
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length(contents.len()),
            0,
            0,
            0,
            0,
            length(name.len() + 1),
            0,
        ];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn archive() -> Vec<u8> {
        let mut archive = Archive::default();
        archive.file("usr/lib/odd", false, b"12345");
        archive.file("usr/bin/run", true, b"#!");
        archive.link("bin/sh", "busybox");
        archive.folder("usr");
        archive.finish()
    }

    #[test]
    fn every_entry_begins_at_a_multiple_of_four() {
        let bytes = archive();
        assert_eq!(bytes.len() % ALIGN, 0);
        let starts: Vec<usize> =
            (0..bytes.len() - 6).filter(|at| &bytes[*at..at + 6] == b"070701").collect();
        // Three folders, four more entries with the trailer, and usr/bin. The folder usr is there
        // once.
        assert_eq!(starts.len(), 4 + 4);
        assert!(starts.iter().all(|start| start % ALIGN == 0));
    }

    #[test]
    fn cpio_finds_what_was_written() {
        let child = Command::new("cpio")
            .args(["--list", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            return crate::testbed::skip("cpio_finds_what_was_written", "cpio is missing");
        };
        child.stdin.take().unwrap().write_all(&archive()).unwrap();
        let output = child.wait_with_output().unwrap();
        let names = String::from_utf8(output.stdout).unwrap();
        let names: Vec<&str> = names.lines().collect();
        assert_eq!(
            names,
            ["usr", "usr/lib", "usr/lib/odd", "usr/bin", "usr/bin/run", "bin", "bin/sh"]
        );
        assert!(output.status.success());
    }
}
