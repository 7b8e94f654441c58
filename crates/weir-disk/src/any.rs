//! Opens a directory for writing in the best way that the kernel supports.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::file::DiskFile;
use crate::files::KernelFiles;
use crate::plain::Plain;
use crate::queue::{Bytes, Completed, Disk, Ticket};
use crate::uring::Uring;

/// How a disk is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// By io_uring; if the kernel refuses that, as [`How::Plain`].
    #[default]
    Best,
    /// By io_uring.
    Uring,
    /// By `pwrite` on threads.
    Plain,
}

/// A disk, written in either way.
pub enum AnyDisk {
    /// By io_uring.
    Uring(Box<Uring>),
    /// By `pwrite` on threads.
    Plain(Plain),
}

/// Opens a disk for files in this directory.
///
/// # Errors
/// The kernel's error: the directory does not exist; or, with [`How::Uring`], io_uring is refused.
pub fn open(directory: &Path, how: How) -> io::Result<AnyDisk> {
    if !std::fs::metadata(directory)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    match how {
        How::Uring => Uring::new().map(|disk| AnyDisk::Uring(Box::new(disk))),
        How::Plain => Ok(AnyDisk::Plain(Plain::new())),
        How::Best => {
            let uring = Uring::new().map(|disk| AnyDisk::Uring(Box::new(disk)));
            Ok(uring.unwrap_or_else(|error| without_uring(&error)))
        }
    }
}

fn without_uring(error: &io::Error) -> AnyDisk {
    let mut plain = Plain::new();
    plain.say(&format!(
        "the kernel refuses io_uring ({error}), so threads write; see kernel.io_uring_disabled, or the container's \
         seccomp profile"
    ));
    AnyDisk::Plain(plain)
}

/// Evaluates an expression for the disk inside an [`AnyDisk`].
macro_rules! either {
    ($disk:expr, $inner:ident => $body:expr) => {
        match $disk {
            AnyDisk::Uring($inner) => $body,
            AnyDisk::Plain($inner) => $body,
        }
    };
}

impl Disk for AnyDisk {
    type File = DiskFile;
    type Files = KernelFiles;

    fn files(&self) -> KernelFiles {
        KernelFiles
    }

    fn create(&mut self, path: &Path, mode: u32) -> io::Result<Arc<DiskFile>> {
        either!(self, disk => disk.create(path, mode))
    }

    fn write(&mut self, file: &Arc<DiskFile>, at: u64, bytes: Bytes, ticket: Ticket) {
        either!(self, disk => disk.write(file, at, bytes, ticket));
    }

    fn pending(&self) -> usize {
        either!(self, disk => disk.pending())
    }

    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>) {
        either!(self, disk => disk.completed(wait, out));
    }

    fn abandon(&mut self) {
        either!(self, disk => disk.abandon());
    }

    fn note(&self) -> Option<&str> {
        either!(self, disk => disk.note())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_io_uring_is_refused_threads_write_and_it_is_said() {
        let disk = without_uring(&io::Error::from_raw_os_error(libc::EPERM));
        assert!(matches!(disk, AnyDisk::Plain(_)));
        let note = disk.note().unwrap();
        for word in ["io_uring", "not permitted", "io_uring_disabled", "seccomp"] {
            assert!(note.contains(word), "'{word}' is not in: {note}");
        }
    }

    #[test]
    fn only_directories_have_a_disk() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let error = |path: &Path| open(path, How::Plain).err().unwrap().kind();
        assert_eq!(error(&file), io::ErrorKind::NotFound);
        std::fs::write(&file, "").unwrap();
        assert_eq!(error(&file), io::ErrorKind::NotADirectory);
        assert_eq!(open(directory.path(), How::Plain).unwrap().note(), None);
    }
}
