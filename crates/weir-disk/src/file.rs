//! A file of a disk: written directly, or through the page cache if direct writes are refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::buffer::ALIGN_BYTES;
use crate::shared::Shared;

/// A file that is being written.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    is_direct: AtomicBool,
    /// Whether the file system preallocates without writing zeros.
    can_preallocate: bool,
    /// Index of the queue that writes the file, for a disk with several queues.
    queue: usize,
}

impl DiskFile {
    /// Creates a file, which must not exist.
    pub(crate) fn create(path: &Path, mode: u32, shared: &Shared) -> io::Result<DiskFile> {
        // O_DIRECT is set only after the file was created: a file system that refuses it may leave the new file behind.
        // Source: open(2), BUGS.
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        let refusal = make_direct(&file).err();
        if let Some(why) = &refusal {
            shared.say(why);
        }
        let can_preallocate =
            rustix::fs::fstatfs(&file).is_ok_and(|stat| PREALLOCATING.contains(&stat.f_type));
        let is_direct = AtomicBool::new(refusal.is_none());
        Ok(DiskFile { file, is_direct, can_preallocate, queue: 0 })
    }

    /// Sets the index of the disk's queue that writes the file.
    pub(crate) fn with_queue(self, queue: usize) -> DiskFile {
        DiskFile { queue, ..self }
    }

    /// Returns the index of the disk's queue that writes the file.
    pub(crate) fn queue(&self) -> usize {
        self.queue
    }

    /// Whether writes to the file bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct.load(Relaxed)
    }

    /// Switches to writes through the page cache, because the kernel has refused a direct write.
    pub(crate) fn give_up_direct(&self, shared: &Shared) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
        self.is_direct.store(false, Relaxed);
        shared.say(REFUSED);
        Ok(())
    }

    /// Whether preallocation is possible and useful; it does not speed up writes through the page cache.
    pub(crate) fn takes_preallocation(&self) -> bool {
        self.is_direct() && self.can_preallocate
    }

    pub(crate) fn cut(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    /// Waits until the file's bytes, and the metadata that is needed to read them, are on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

impl AsFd for DiskFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// File systems that preallocate by marking extents as unwritten. Others write zeros (vfat), or use memory (tmpfs).
/// Source: fallocate(2), and each file system's own `fallocate`.
const PREALLOCATING: [libc::__fsword_t; 4] = [
    libc::EXT4_SUPER_MAGIC,
    libc::XFS_SUPER_MAGIC,
    libc::BTRFS_SUPER_MAGIC,
    libc::F2FS_SUPER_MAGIC,
];

const REFUSED: &str =
    "the file system refuses direct writes (O_DIRECT), so they go through the page cache";

fn make_direct(file: &File) -> Result<(), String> {
    // `STATX_DIOALIGN` exists since Linux 6.1. If the kernel or the file system does not report it, the first write
    // shows whether direct writes work.
    if let Ok(stat) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN)
    {
        check_alignment(stat.stx_dio_mem_align, stat.stx_dio_offset_align)?;
    }
    let flags = rustix::fs::fcntl_getfl(file).unwrap_or(OFlags::WRONLY);
    match rustix::fs::fcntl_setfl(file, flags | OFlags::DIRECT) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL) => Err(REFUSED.to_owned()),
        Err(error) => Err(format!("{REFUSED} ({error})")),
    }
}

/// Checks the alignments that the kernel requires. Both are 0 if the file does not support direct writes.
/// Source: statx(2).
fn check_alignment(memory: u32, offset: u32) -> Result<(), String> {
    let wanted = memory.max(offset);
    if offset == 0 {
        return Err(REFUSED.to_owned());
    }
    if wanted as usize > ALIGN_BYTES {
        return Err(format!(
            "the file system wants direct writes in units of {wanted} bytes, more than {ALIGN_BYTES}, so they go \
             through the page cache"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_wants_larger_units_gets_no_direct_writes() {
        assert_eq!(check_alignment(4, 512), Ok(()));
        assert_eq!(check_alignment(4096, 4096), Ok(()));
        assert_eq!(check_alignment(0, 0), Err(REFUSED.to_owned()));
        for (memory, offset) in [(512, 65_536), (65_536, 512)] {
            let why = check_alignment(memory, offset).unwrap_err();
            assert!(why.contains("65536 bytes"), "{why}");
        }
    }
}
