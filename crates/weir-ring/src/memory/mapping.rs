//! Ring memory in the address space of this process.

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

/// A shared mapping of a ring's memory, with the descriptor it was made from.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
    access: Access,
    backing: Backing,
    /// Where in the descriptor it begins, in bytes.
    offset: u64,
}

/// Keeps the memory alive.
#[derive(Debug)]
enum Backing {
    /// The mapping is its own.
    Own(OwnedFd),
    /// It is a part of this one.
    Whole(Arc<Mapping>),
}

// SAFETY: the mapping belongs to no thread, and is only ever reached as `&[AtomicU64]`, or by `copy` (decision 0003).
unsafe impl Send for Mapping {}
// SAFETY: as above; atomics may be shared.
unsafe impl Sync for Mapping {}

impl Words for Mapping {
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: in bounds and alive: `base` is the start of a mapping of `words * 8` bytes, or of a part of one,
        // that only the `Drop` of its owner removes, which `backing` holds; and the borrow ends before.
        // Aligned: mmap returns whole pages, and parts begin at whole words.
        // Races: every process of ours touches this memory as `AtomicU64`, or by `copy` (decision 0003); BPF programs
        // store to it from the kernel, outside this language's memory model, with the ordering that
        // `bpf/ring.h` argues. A read-only mapping is sound because readers only load, relaxed
        // (`std::sync::atomic`, "Atomic accesses to read-only memory"; `sync::load_acquire`), and a
        // `Writer` asks `is_writable` first.
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
        // SAFETY: exactly the range that `map` got from mmap, and nothing borrows it any more.
        // A failure could only leave it mapped.
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
    /// `fd` must not become shorter than `bytes` while it is mapped: its pages would go away under
    /// borrowed words. Sealed memfds and BPF arrays cannot. And nothing in this process may reach the
    /// memory otherwise than as `AtomicU64`, or by `copy` (decision 0003).
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

    /// Maps `bytes` of `fd` from `offset` on, a multiple of the page size: a part of memory that holds more.
    ///
    /// # Errors
    /// As [`map`](Mapping::map).
    ///
    /// # Safety
    /// As for [`map`](Mapping::map), of the whole `offset + bytes`.
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

    /// A part of a mapping, which keeps the whole mapping: for memory that cannot be mapped for writing again.
    ///
    /// # Panics
    /// If `offset` and `bytes`, multiples of 8, are not inside of it.
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

    /// Where in the descriptor it begins, in bytes: 0, unless it is a [part](Mapping::map_part).
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Faults in every page of a writer's mapping before the first frame comes.
    pub(super) fn populate(&self) {
        let bytes = self.words * 8;
        // SAFETY: this mapping, whose bytes stay as they are. Where this is refused (Linux 5.13 and before, pages that
        // cannot be had) they are looked up when they are used.
        let _ = unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite)
        };
    }

    /// Makes the kernel allocate further pages on this NUMA node, if it has some.
    pub(super) fn prefer_node(&self, node: u32) {
        super::placement::prefer_node(self.base.cast(), self.words * 8, node);
    }

    /// Makes huge pages of a writer's new memory as far as the machine has them. Best before anything is written.
    ///
    /// Ordinary pages are asked for one by one, 256 for each MiB, and later looked up one by one by the processor: huge
    /// ones are there ten times as fast. This asks even where the machine's setting for shared memory is `never`, which
    /// is the kernel's default and concerns memory whose owner did not ask (madvise(2), `MADV_COLLAPSE`, Linux 6.1).
    ///
    /// # Errors
    /// [`RingError::Os`] where there is not even memory for a page of each.
    pub(super) fn make_huge_pages(&self) -> Result<(), RingError> {
        let whole = self.words * 8 / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if self.access != Access::Write || !self.base.addr().get().is_multiple_of(HUGE_PAGE_BYTES) {
            return Ok(());
        }
        // Where no page is, the kernel makes no huge one.
        for offset in (0..whole as u64).step_by(HUGE_PAGE_BYTES) {
            reserve(self.as_fd(), offset, 4096)?;
        }
        // SAFETY: whole pages of this mapping. Their contents and addresses stay; only the pages change. A kernel
        // that refuses leaves them as they are.
        let _ = unsafe { libc::madvise(self.base.as_ptr().cast(), whole, libc::MADV_COLLAPSE) };
        Ok(())
    }
}

/// Allocates the pages of a part of a file.
///
/// # Errors
/// [`RingError::Os`] without memory: to touch them would end the process.
pub(super) fn reserve(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), RingError> {
    rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, bytes)
        .map_err(RingError::os("reserving ring memory"))
}

const HUGE_PAGE_BYTES: usize = super::placement::HUGE_PAGE_BYTES as usize;

/// Maps at a multiple of a huge page, where memory in huge pages can be mapped in them: the kernel does so by itself
/// only where such pages are its default. The place is looked for first, and may be taken by another thread meanwhile:
/// that is an error, as is whatever the kernel does not like there.
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
    // SAFETY: exactly the reserved range, to which nothing refers.
    unsafe { rustix::mm::munmap(reserved, reserved_bytes) }?;
    let at = reserved.wrapping_byte_add(before);
    // SAFETY: `FIXED_NOREPLACE` touches no other mapping.
    unsafe { rustix::mm::mmap(at, bytes, prot, flags | MapFlags::FIXED_NOREPLACE, fd, 0) }
}

/// The use of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Readers.
    Read,
    /// The one writer, or the process that formats the ring.
    Write,
}
