//! A file of shared memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::retry_on_intr;

use crate::error::VmError;

/// Source: linux/magic.h.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x9584_58f6;

/// Bytes of the pages that files in this folder are made of.
///
/// # Errors
/// [`VmError::NotMemory`] if they are not memory, [`VmError::File`] if there is no such folder.
pub(super) fn page_bytes(folder: &Path) -> Result<u64, VmError> {
    let stat = rustix::fs::statfs(folder);
    let stat = stat.map_err(|errno| failed("use the folder", folder, errno.into()))?;
    if stat.f_type != TMPFS_MAGIC && stat.f_type != HUGETLBFS_MAGIC {
        return Err(VmError::NotMemory { folder: folder.to_owned() });
    }
    Ok(stat.f_bsize as u64)
}

/// A file of this process, with all its pages. Dropping it removes it, unless another has taken its name.
#[derive(Debug)]
pub(super) struct MemoryFile {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Device and inode.
    identity: (u64, u64),
}

impl MemoryFile {
    /// Makes it anew, of zeros, open to its owner alone.
    pub(super) fn create(path: PathBuf, bytes: u64) -> Result<MemoryFile, VmError> {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove the file of an earlier daemon", &path, error));
            }
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path).map_err(|error| failed("create the file", &path, error))?;
        let stat = file.metadata().map_err(|error| failed("look at the file", &path, error))?;
        let file = MemoryFile { file, path, bytes, identity: (stat.dev(), stat.ino()) };
        let reserve = || rustix::fs::fallocate(&file.file, FallocateFlags::empty(), 0, bytes);
        match retry_on_intr(reserve) {
            Ok(()) => Ok(file),
            Err(errno) => {
                Err(VmError::NoMemory { path: file.path.clone(), bytes, source: errno.into() })
            }
        }
    }

    /// Gives it this mode, and to this group.
    pub(super) fn open_to(&self, gid: Option<u32>, mode: u32) -> Result<(), VmError> {
        if gid.is_some() {
            let give = std::os::unix::fs::fchown(&self.file, None, gid);
            give.map_err(|error| failed("give the file to QEMU's group", &self.path, error))?;
        }
        let set = self.file.set_permissions(std::fs::Permissions::from_mode(mode));
        set.map_err(|error| failed("set the mode of the file", &self.path, error))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn duplicate(&self) -> Result<File, VmError> {
        let duplicate = self.file.try_clone();
        duplicate.map_err(|error| failed("duplicate the descriptor", &self.path, error))
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let stat = std::fs::symlink_metadata(&self.path);
        if stat.is_ok_and(|stat| (stat.dev(), stat.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> VmError {
    VmError::File { doing, path: path.to_owned(), source }
}
