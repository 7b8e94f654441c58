//! Requests about whole files: they take as long as the file system does, so they may be made on any thread.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::directory::{self, Space};
use crate::file::DiskFile;
use crate::removed;

/// Requests about whole files of a disk.
pub trait Files: Clone + Send + 'static {
    /// An open file.
    type File: Send + Sync + 'static;

    /// Cuts a file off at byte `length`, and gives back space that was preallocated behind that. No write is under way
    /// there.
    ///
    /// # Errors
    /// The kernel's error.
    fn cut(&self, file: &Self::File, length: u64) -> io::Result<()>;

    /// Waits until a file's bytes are on the disk.
    ///
    /// # Errors
    /// The kernel's error.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Gives a file its final name, on the disk too: the directory is synced.
    ///
    /// # Errors
    /// What the kernel says: `EEXIST` where another file has the name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The kernel's error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Gives back what a removed file has behind byte `length`, and waits until the file system has done so. False:
    /// it is not only this process that has the file (somebody has it open, or it has another name), so nothing was
    /// changed.
    ///
    /// # Errors
    /// The kernel's error.
    fn shorten(&self, removed: &File, length: u64) -> io::Result<bool>;

    /// Whether the directory's file system is mounted with `discard`: see [`discards`](crate::discards).
    fn discards(&self, directory: &Path) -> bool;

    /// Bytes of the directory's file system: all of them, and those that are free.
    ///
    /// # Errors
    /// The kernel's error.
    fn space(&self, directory: &Path) -> io::Result<Space>;
}

/// The kernel's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelFiles;

impl Files for KernelFiles {
    type File = DiskFile;

    fn cut(&self, file: &DiskFile, length: u64) -> io::Result<()> {
        file.cut(length)
    }

    fn sync(&self, file: &DiskFile) -> io::Result<()> {
        file.sync()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        directory::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn shorten(&self, removed: &File, length: u64) -> io::Result<bool> {
        removed::shorten(removed, length)
    }

    fn discards(&self, directory: &Path) -> bool {
        directory::discards(directory)
    }

    fn space(&self, directory: &Path) -> io::Result<Space> {
        directory::space(directory)
    }
}
