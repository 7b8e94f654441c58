//! Follows a file as `tail -F` does: the file may grow, be truncated, or be renamed and created again.
//!
//! The file is polled, which works on every file system and costs two system calls if nothing is new.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::lines::{Line, Lines};

/// Bytes to read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// A file that is read as it grows. It may not exist yet.
pub struct FollowedFile {
    path: PathBuf,
    open: Option<Open>,
    /// A new file at the path. It is read once the old file has been read to its end.
    next: Option<Open>,
    lines: Lines,
    /// Size that the file had when this value was created; 0 for files that appear later. Lines that lie within these
    /// bytes are old.
    old: u64,
    buffer: Vec<u8>,
}

struct Open {
    file: File,
    /// Device and inode number. As long as this file is open, another file at the path has different ones.
    identity: (u64, u64),
    offset: u64,
}

impl Open {
    /// Opens the file. Returns `None` if it does not exist.
    fn new(path: &Path) -> io::Result<Option<Open>> {
        // Opening a named pipe would wait for its writer.
        let is_file = match path.metadata() {
            Ok(meta) => meta.is_file(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !is_file {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file"));
        }
        match File::open(path) {
            Ok(file) => {
                let identity = identity(&file.metadata()?);
                Ok(Some(Open { file, identity, offset: 0 }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

impl FollowedFile {
    /// Opens the file at this path, if there is one, and starts at its beginning.
    ///
    /// # Errors
    /// The file exists but cannot be read, or is not a regular file.
    pub fn new(path: &Path) -> io::Result<FollowedFile> {
        let open = Open::new(path)?;
        let old =
            open.as_ref().map_or(Ok(0), |open| Ok::<_, io::Error>(open.file.metadata()?.len()))?;
        let (path, buffer) = (path.to_owned(), vec![0; PIECE_BYTES]);
        Ok(FollowedFile { path, open, next: None, lines: Lines::default(), old, buffer })
    }

    /// Returns whether a file has been found at the path.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.open.is_some()
    }

    /// Reads a piece of the file and passes its lines to `take`. The flag beside each line tells whether the file had
    /// the line already when this value was created. Returns `false` if nothing is new; the caller then tries again
    /// later.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, mut take: impl FnMut(Line, bool)) -> io::Result<bool> {
        let Some(open) = &mut self.open else {
            self.open = Open::new(&self.path)?;
            return Ok(self.open.is_some());
        };
        let is_old = open.offset < self.old;
        let left = usize::try_from(self.old.saturating_sub(open.offset)).unwrap_or(PIECE_BYTES);
        // A piece has either old or new bytes. A line that has both counts as new.
        let piece = if is_old { left.min(PIECE_BYTES) } else { PIECE_BYTES };
        let count = match open.file.read(&mut self.buffer[..piece]) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            other => other?,
        };
        if count > 0 {
            open.offset += count as u64;
            self.lines.push(&self.buffer[..count], |line| take(line, is_old));
            return Ok(true);
        }
        if let Some(next) = self.next.take() {
            self.lines.end(|line| take(line, false));
            (self.open, self.old) = (Some(next), 0);
            return Ok(true);
        }
        // The file was truncated and written again from its beginning. This is not noticed if it has already grown
        // beyond the old offset.
        if open.file.metadata()?.len() < open.offset {
            open.file.rewind()?;
            (open.offset, self.old) = (0, 0);
            self.lines.end(|line| take(line, false));
            return Ok(true);
        }
        let Some(now) = Open::new(&self.path)? else { return Ok(false) };
        if now.identity == open.identity {
            return Ok(false);
        }
        // The writer may have written to the old file since the last read, so the old file is read to its end first.
        self.next = Some(now);
        Ok(true)
    }

    /// Passes the bytes after the last line break to `take` as a line.
    pub fn end(&mut self, mut take: impl FnMut(Line, bool)) {
        self.lines.end(|line| take(line, false));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;

    /// All lines that can be read now; old lines have a `*`.
    fn read(file: &mut FollowedFile) -> Vec<String> {
        let mut all = Vec::new();
        while file
            .read(|line, is_old| {
                let Line::Whole(line) = line else { panic!("too long") };
                let mark = if is_old { "*" } else { "" };
                all.push(format!("{}{mark}", String::from_utf8_lossy(line)));
            })
            .unwrap()
        {}
        all
    }

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn lines_come_once_their_ends_do_and_those_of_the_beginning_are_old() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eve.json");
        append(&path, "one\ntwo\nthr");
        let mut file = FollowedFile::new(&path).unwrap();
        append(&path, "ee\nfour\nfi");
        assert_eq!(read(&mut file), ["one*", "two*", "three", "four"]);
        append(&path, "ve");
        assert_eq!(read(&mut file), [""; 0]);
        append(&path, "\nsix\n");
        assert_eq!(read(&mut file), ["five", "six"]);
    }

    #[test]
    fn a_file_that_is_not_there_yet_is_waited_for_and_all_of_it_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eve.json");
        let mut file = FollowedFile::new(&path).unwrap();
        assert!(read(&mut file).is_empty() && !file.is_there());
        append(&path, "one\n");
        assert_eq!(read(&mut file), ["one"]);
    }

    #[test]
    fn a_file_that_is_renamed_and_made_anew_loses_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("eve.json"), dir.path().join("eve.json.1"));
        append(&path, "one\n");
        let mut file = FollowedFile::new(&path).unwrap();
        assert_eq!(read(&mut file), ["one*"]);
        for turn in 0..3 {
            append(&path, "before\n");
            fs::rename(&path, &old).unwrap();
            // The new file does not exist yet, and the writer still has the old one open.
            append(&old, "late\n");
            if turn > 0 {
                assert_eq!(read(&mut file), ["before", "late"]);
            }
            append(&old, "later\nhalf");
            append(&path, "new\n");
            let expected = ["before", "late", "later", "half", "new"];
            assert_eq!(read(&mut file), expected[if turn > 0 { 2 } else { 0 }..]);
        }
        fs::remove_file(&path).unwrap();
        append(&path, "made anew\n");
        assert_eq!(read(&mut file), ["made anew"]);
    }

    #[test]
    fn a_file_that_is_cut_is_read_from_its_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eve.json");
        append(&path, "one\ntwo\nhalf");
        let mut file = FollowedFile::new(&path).unwrap();
        read(&mut file);
        fs::write(&path, "x\n").unwrap();
        assert_eq!(read(&mut file), ["half", "x"]);
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let said = FollowedFile::new(dir.path()).err().unwrap().to_string();
        assert!(said.contains("no regular file"), "{said}");
        assert!(FollowedFile::new(Path::new("/dev/null")).is_err());
    }
}
