//! Where a ring's memory lives, and who may write it.
//!
//! | memory | made safe by |
//! |---|---|
//! | memfd | `F_SEAL_FUTURE_WRITE`: the writer's mapping stays, nobody makes another |
//! | file on tmpfs or hugetlbfs | file mode; readers get a descriptor opened read-only |
//! | mmapable BPF array | `BPF_MAP_FREEZE`: only BPF programs still write (`weir-capture`) |

use std::ffi::c_void;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::RingError;
use crate::geometry::{BLOCK_BYTES, Geometry};
use crate::header::{self, RingSpec};
use crate::sync::AtomicU64;
use crate::{Ring, Words};

/// A shared mapping of a ring's memory, with the descriptor it was made from.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to no thread, and it is only ever reached as `&[AtomicU64]`.
unsafe impl Send for Mapping {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for Mapping {}

impl Words for Mapping {
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: in bounds and alive: `base` is the start of a mapping of `words * 8` bytes that
        // only `Drop` removes, and the borrow ends before. Aligned: mmap returns whole pages.
        // Races: every process of ours touches this memory as `AtomicU64` only; BPF programs store
        // to it from the kernel, outside this language's memory model, with the ordering that
        // `bpf/ring.h` argues. A read-only mapping is sound because readers only load (`std::sync::
        // atomic`, "Atomic accesses to read-only memory": plain loads of up to 8 bytes are allowed).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` got from mmap, and nothing borrows it any more.
        // A failure could only leave it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.words * 8) };
    }
}

impl Mapping {
    /// Maps `bytes` (a multiple of 8, not 0) of `fd`, shared.
    ///
    /// The caller answers for the descriptor not shrinking while it is mapped: touching pages past
    /// its end would kill the process. Sealed memfds and BPF arrays cannot shrink.
    ///
    /// # Errors
    /// [`RingError::Os`] with what the kernel said.
    pub fn map(fd: OwnedFd, bytes: u64, access: Access) -> Result<Mapping, RingError> {
        let (prot, flags) = match access {
            Access::Read => (ProtFlags::READ, MapFlags::SHARED),
            // The writer's pages are there before the first frame is.
            Access::Write => {
                (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE)
            }
        };
        // SAFETY: a null hint lets the kernel choose the place, so no other mapping is touched.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes as usize, prot, flags, &fd, 0) }
                .map_err(RingError::os("mapping ring memory"))?;
        let base = NonNull::new(base.cast()).expect("mmap returns no null without MAP_FIXED");
        Ok(Mapping { base, words: bytes as usize / 8, fd })
    }
}

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Readers.
    Read,
    /// The one writer, or whoever formats the ring.
    Write,
}

/// Makes a ring in a new memfd, sealed so that the returned mapping stays the only writable one.
///
/// # Errors
/// [`RingError`]: impossible spec, or no memory.
pub fn create_memfd(name: &str, spec: &RingSpec) -> Result<Ring<Mapping>, RingError> {
    let bytes = Geometry::new(spec.data_blocks)?.total_bytes();
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(RingError::os("creating a memfd"))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(RingError::os("sizing a memfd"))?;
    let mapping = Mapping::map(fd, bytes, Access::Write)?;
    let geometry = header::format(mapping.words(), spec)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&mapping, seals).map_err(RingError::os("sealing a memfd"))?;
    Ring::new(Arc::new(mapping), geometry)
}

/// Makes a ring in a new file, meant for tmpfs or hugetlbfs. The file must not exist; its mode lets
/// the owner write and the group read.
///
/// # Errors
/// [`RingError`]: impossible spec, the file exists, or no room on the file system.
pub fn create_file(path: &Path, spec: &RingSpec) -> Result<Ring<Mapping>, RingError> {
    let bytes = Geometry::new(spec.data_blocks)?.total_bytes();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o640)
        .open(path)
        .map_err(|source| RingError::Os { doing: "creating a ring file", source })?;
    // hugetlbfs takes whole huge pages only; its block size is the huge page size.
    let page = rustix::fs::fstatfs(&file).map_err(RingError::os("asking a file system"))?.f_bsize;
    let bytes = bytes.next_multiple_of((page as u64).max(4096));
    let make = || {
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)
            .map_err(RingError::os("reserving ring memory"))?;
        let mapping =
            Mapping::map(file.try_clone().map_err(io_error)?.into(), bytes, Access::Write)?;
        let geometry = header::format(mapping.words(), spec)?;
        Ring::new(Arc::new(mapping), geometry)
    };
    make().inspect_err(|_| drop(std::fs::remove_file(path)))
}

fn io_error(source: std::io::Error) -> RingError {
    RingError::Os { doing: "duplicating a descriptor", source }
}

/// Opens a ring file read-only.
///
/// # Errors
/// As [`attach`].
pub fn open_file(path: &Path) -> Result<Ring<Mapping>, RingError> {
    let file = OpenOptions::new()
        .read(true)
        .open(path)
        .map_err(|source| RingError::Os { doing: "opening a ring file", source })?;
    attach(file.into())
}

/// Attaches to a ring that somebody else owns, read-only.
///
/// # Errors
/// [`RingError::NotSealed`] for a memfd that could shrink under us, [`RingError::TooSmall`] for a file
/// cut short, else what is wrong with the ring.
pub fn attach(fd: OwnedFd) -> Result<Ring<Mapping>, RingError> {
    let stat = rustix::fs::fstat(&fd).map_err(RingError::os("asking for the ring's size"))?;
    // BPF arrays are anonymous inodes without a size; mapping past their end fails in mmap.
    let regular =
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile;
    let size = regular.then_some(stat.st_size as u64);
    let check = |need: u64| match size {
        Some(have) if have < need => Err(RingError::TooSmall { have, need }),
        _ => Ok(()),
    };
    // A memfd has no link; files in a file system do, and are trusted as far as their owner is.
    if regular && stat.st_nlink == 0 {
        let seals = rustix::fs::fcntl_get_seals(&fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RingError::NotSealed);
        }
    }
    check(u64::from(BLOCK_BYTES))?;
    let head = fd.try_clone().map_err(io_error)?;
    let hugetlb = rustix::fs::fstatfs(&fd).is_ok_and(|fs| fs.f_type == HUGETLBFS_MAGIC);
    let round = |bytes: u64| match size {
        Some(size) if hugetlb => size,
        _ => bytes,
    };
    let first = Mapping::map(head, round(u64::from(BLOCK_BYTES)), Access::Read)?;
    let geometry = header::read(first.words())?.geometry;
    drop(first);
    check(geometry.total_bytes())?;
    let mapping = Mapping::map(fd, round(geometry.total_bytes()), Access::Read)?;
    Ring::new(Arc::new(mapping), geometry)
}

/// Source: linux/magic.h.
const HUGETLBFS_MAGIC: rustix::fs::FsWord = 0x958458f6;
