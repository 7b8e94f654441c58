//! Requests for whole files. They may be slow, so they can be made on any thread.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::directory::{self, Space};
use crate::file::DiskFile;
use crate::removed;

/// Requests for whole files of a disk.
pub trait Files: Clone + Send + 'static {
    /// An open file.
    type File: Send + Sync + 'static;

    /// Truncates a file to `length` bytes, and frees the space that was preallocated after them. No write may be in
    /// progress in that part.
    ///
    /// # Errors
    /// The kernel's error.
    fn cut(&self, file: &Self::File, length: u64) -> io::Result<()>;

    /// Writes a file's bytes to the disk, and waits until they are there.
    ///
    /// # Errors
    /// The kernel's error.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Renames a file and syncs the directory, so that the name is on the disk.
    ///
    /// # Errors
    /// The kernel's error: `EEXIST` if another file has the name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// The kernel's error.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Truncates a removed file to `length` bytes, and waits until the file system has freed the space. Returns false
    /// and changes nothing if the file is also open elsewhere, if it still has a name, or if that cannot be told.
    ///
    /// # Errors
    /// The kernel's error.
    fn shorten(&self, removed: &File, length: u64) -> io::Result<bool>;

    /// Whether the directory's file system is mounted with `discard`: see [`discards`](crate::discards).
    fn discards(&self, directory: &Path) -> bool;

    /// Returns the total and free bytes of the directory's file system.
    ///
    /// # Errors
    /// The kernel's error.
    fn space(&self, directory: &Path) -> io::Result<Space>;
}

/// Makes the requests to the kernel.
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
