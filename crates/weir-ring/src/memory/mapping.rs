//! Maps ring memory into the address space of this process.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::Words;
use crate::error::RingError;
use crate::sync::AtomicU64;

/// A shared mapping of a ring's memory, with the descriptor that was mapped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
    access: Access,
    backing: Backing,
    /// Offset in the descriptor at which this mapping begins, in bytes.
    offset: u64,
}

/// The owner of the mapped memory, which keeps it mapped.
#[derive(Debug)]
enum Backing {
    /// The mapping owns its memory, and unmaps it when it is dropped.
    Own(OwnedFd),
    /// The mapping is a part of this one.
    Whole(Arc<Mapping>),
}

// SAFETY: the mapping belongs to no thread. It is accessed only as `&[AtomicU64]`, or by `copy` (decision 0003).
unsafe impl Send for Mapping {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for Mapping {}

impl Words for Mapping {
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: in bounds and alive: `base` is the start of a mapping of `words * 8` bytes, or of a part of one. Only
        // the `Drop` of its owner unmaps this memory; `backing` holds the owner, and the borrow ends before.
        // Aligned: mmap returns whole pages, and parts begin at whole words.
        // Races: every process of Weir accesses this memory as `AtomicU64`, or by `copy` (decision 0003); BPF programs
        // store to it from the kernel, outside of Rust's memory model, with the ordering that `bpf/ring.h` describes. A
        // read-only mapping is sound because readers make only relaxed loads (`std::sync::atomic`, "Atomic accesses to
        // read-only memory"; `sync::load_acquire`), and a `Writer` checks `is_writable` first.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    fn is_writable(&self) -> bool {
        self.access == Access::Write
    }
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.backing {
            Backing::Own(fd) => fd.as_fd(),
            Backing::Whole(whole) => whole.as_fd(),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Backing::Whole(_) = self.backing {
            return;
        }
        // SAFETY: the range is exactly the one that `map` got from mmap, and nothing borrows it any more. If the call
        // fails, the memory only stays mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.words * 8) };
    }
}

impl Mapping {
    /// Maps `bytes` (a multiple of 8, not 0) of `fd`, shared.
    ///
    /// # Errors
    /// [`RingError::Os`] with the kernel's error.
    ///
    /// # Safety
    /// `fd` must not become shorter than `bytes` while it is mapped: borrowed words would lose their pages. Sealed
    /// memfds and BPF arrays cannot become shorter. And nothing in this process may access the memory except as
    /// `AtomicU64`, or by `copy` (decision 0003).
    pub unsafe fn map(fd: OwnedFd, bytes: u64, access: Access) -> Result<Mapping, RingError> {
        let (prot, flags) = match access {
            Access::Read => (ProtFlags::READ, MapFlags::SHARED),
            Access::Write => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
        };
        let base = map_aligned(&fd, bytes as usize, prot, flags).or_else(|_| {
            // SAFETY: a null hint lets the kernel choose the place, so no other mapping is touched.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes as usize, prot, flags, &fd, 0) }
        });
        let base = base.map_err(RingError::os("mapping ring memory"))?;
        let base = NonNull::new(base.cast()).expect("mmap returns no null without MAP_FIXED");
        Ok(Mapping {
            base,
            words: bytes as usize / 8,
            access,
            backing: Backing::Own(fd),
            offset: 0,
        })
    }

    /// Maps `bytes` of `fd` from `offset` on, a multiple of the page size: a part of larger memory.
    ///
    /// # Errors
    /// The errors of [`map`](Mapping::map).
    ///
    /// # Safety
    /// The conditions of [`map`](Mapping::map), for the range up to `offset + bytes`.
    pub unsafe fn map_part(
        fd: OwnedFd,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<Mapping, RingError> {
        let prot = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        let (any, bytes) = (std::ptr::null_mut(), bytes as usize);
        // SAFETY: a null hint lets the kernel choose the place, so no other mapping is touched.
        let base = unsafe { rustix::mm::mmap(any, bytes, prot, MapFlags::SHARED, &fd, offset) };
        let base = base.map_err(RingError::os("mapping ring memory"))?;
        let base = NonNull::new(base.cast()).expect("mmap returns no null without MAP_FIXED");
        Ok(Mapping { base, words: bytes / 8, access, backing: Backing::Own(fd), offset })
    }

    /// Returns a part of a mapping, which keeps the whole mapping alive: for memory that cannot be mapped for writing
    /// again.
    ///
    /// # Panics
    /// If `offset` and `bytes`, multiples of 8, are not inside the mapping.
    #[must_use]
    pub fn part(whole: &Arc<Mapping>, offset: u64, bytes: u64) -> Mapping {
        let end = offset.checked_add(bytes).filter(|end| *end <= whole.words as u64 * 8);
        assert!(
            end.is_some() && offset.is_multiple_of(8) && bytes.is_multiple_of(8),
            "{bytes} bytes at {offset}"
        );
        let (skipped, words) = (offset as usize / 8, bytes as usize / 8);
        // SAFETY: inside of the mapping, as was just checked.
        let base = unsafe { whole.base.add(skipped) };
        let offset = whole.offset + offset;
        let backing = Backing::Whole(Arc::clone(whole));
        Mapping { base, words, access: whole.access, backing, offset }
    }

    /// Returns the offset in the descriptor at which this mapping begins, in bytes: 0, unless it is a
    /// [part](Mapping::map_part).
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Faults in every page of a writer's mapping before the first frame comes.
    pub(super) fn populate(&self) {
        let bytes = self.words * 8;
        // SAFETY: the range is this mapping, whose contents stay the same. If the kernel refuses (Linux 5.13 and
        // before, or pages that it cannot allocate), the pages are mapped on first access.
        let _ = unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite)
        };
    }

    /// Makes the kernel prefer this NUMA node when it allocates further pages.
    pub(super) fn prefer_node(&self, node: u32) {
        super::placement::prefer_node(self.base.cast(), self.words * 8, node);
    }

    /// Turns the pages of a writer's new memory into huge pages, as far as the machine has them. Should be called
    /// before anything is written.
    ///
    /// Ordinary pages are allocated one by one, 256 for each MiB, and the processor later looks each of them up. Huge
    /// pages are allocated ten times as fast. The kernel does this even if the machine's setting for shared memory is
    /// `never`: that is its default, and is for memory whose owner did not ask for huge pages (madvise(2),
    /// `MADV_COLLAPSE`, Linux 6.1).
    ///
    /// # Errors
    /// [`RingError::Os`] if there is not even memory for one ordinary page of each huge page.
    pub(super) fn make_huge_pages(&self) -> Result<(), RingError> {
        let whole = self.words * 8 / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if self.access != Access::Write || !self.base.addr().get().is_multiple_of(HUGE_PAGE_BYTES) {
            return Ok(());
        }
        // The kernel makes no huge page where no page is allocated.
        for offset in (0..whole as u64).step_by(HUGE_PAGE_BYTES) {
            reserve(self.as_fd(), offset, 4096)?;
        }
        // SAFETY: the range is whole pages of this mapping. Contents and addresses stay the same; only the pages
        // change. If the kernel refuses, nothing changes.
        let _ = unsafe { libc::madvise(self.base.as_ptr().cast(), whole, libc::MADV_COLLAPSE) };
        Ok(())
    }
}

/// Allocates the pages of a part of a file.
///
/// # Errors
/// [`RingError::Os`] if memory is missing. Without this check, the first access to a missing page would end the
/// process.
pub(super) fn reserve(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), RingError> {
    rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, bytes)
        .map_err(RingError::os("reserving ring memory"))
}

const HUGE_PAGE_BYTES: usize = super::placement::HUGE_PAGE_BYTES as usize;

/// Maps the memory at a multiple of the size of a huge page, so that memory in huge pages can be mapped by huge pages.
/// The kernel does this by itself only where huge pages are its default. This function first finds a free range. If
/// another thread takes the range meanwhile, or the kernel refuses to map there, it returns an error.
fn map_aligned(
    fd: &OwnedFd,
    bytes: usize,
    prot: ProtFlags,
    flags: MapFlags,
) -> rustix::io::Result<*mut c_void> {
    if bytes < HUGE_PAGE_BYTES {
        return Err(Errno::INVAL);
    }
    let reserved_bytes = bytes + HUGE_PAGE_BYTES;
    let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a null hint lets the kernel choose the place, so no other mapping is touched.
    let reserved = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            reserved_bytes,
            ProtFlags::empty(),
            reserve,
        )
    }?;
    let before = reserved.addr().next_multiple_of(HUGE_PAGE_BYTES) - reserved.addr();
    // SAFETY: the range is exactly the reserved one, and nothing refers to it.
    unsafe { rustix::mm::munmap(reserved, reserved_bytes) }?;
    let at = reserved.wrapping_byte_add(before);
    // SAFETY: `FIXED_NOREPLACE` touches no other mapping.
    unsafe { rustix::mm::mmap(at, bytes, prot, flags | MapFlags::FIXED_NOREPLACE, fd, 0) }
}

/// Whether a mapping may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read-only: for readers.
    Read,
    /// Read and write: for the one writer, or the process that formats the ring.
    Write,
}
