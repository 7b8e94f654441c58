//! Memory that is shared with the kernel: mapped, bounded, given back.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};
use weir_ring::memory::{HUGE_PAGE_BYTES, Pages, Placement, prefer_node};

/// A mapping of its own, readable and writable.
#[derive(Debug)]
pub(super) struct Area {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to no thread; its words are reached as atomics, its bytes only through
// `bytes`, whose callers answer for nobody writing them.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap gave, and nothing borrows it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

impl Area {
    /// Zeroed memory, its pages there already.
    pub(super) fn anonymous(
        bytes: usize,
        Placement { pages, node }: Placement,
    ) -> io::Result<Area> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let mut flags = MapFlags::PRIVATE;
        let mut whole = bytes;
        if pages == Pages::Reserved {
            flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            whole = bytes.next_multiple_of(HUGE_PAGE_BYTES as usize);
        }
        // Not populated yet: huge pages are asked for before the first touch.
        // SAFETY: a null hint lets the kernel choose the place, so no other mapping is touched.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, prot, flags) }?;
        let area = Area::of(base, whole);
        if let Some(node) = node {
            prefer_node(area.base, whole, node);
        }
        // SAFETY: advice about exactly our own mapping; neither changes its contents.
        unsafe {
            let _ = rustix::mm::madvise(base, whole, rustix::mm::Advice::LinuxHugepage);
            let _ = rustix::mm::madvise(base, whole, rustix::mm::Advice::LinuxPopulateWrite);
        }
        Ok(area)
    }

    /// A part of the frames that a descriptor offers.
    pub(super) fn of_fd(fd: BorrowedFd<'_>, bytes: usize, offset: u64) -> io::Result<Area> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as in `anonymous`.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, prot, flags, fd, offset) }?;
        Ok(Area::of(base, bytes))
    }

    fn of(base: *mut c_void, bytes: usize) -> Area {
        Area { base: NonNull::new(base.cast()).expect("mmap returns no null"), bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The word at byte `at`.
    ///
    /// # Panics
    /// If it does not lie in the area, or not at a multiple of 4.
    #[inline]
    pub(super) fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < self.bytes && self.bytes - at >= 4);
        // SAFETY: aligned and in bounds, just checked (the base is a page); alive as long as `self`;
        // this process and the kernel reach ring words atomically only.
        unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// `count` words of 64 bits from byte `at` on.
    ///
    /// # Panics
    /// As [`u32`](Area::u32), with 8.
    pub(super) fn u64s(&self, at: usize, count: usize) -> &[AtomicU64] {
        let end = count.checked_mul(8).and_then(|bytes| at.checked_add(bytes));
        assert!(at.is_multiple_of(8) && end.is_some_and(|end| end <= self.bytes));
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at).cast(), count) }
    }

    /// Fetches the cache line of byte `at`, so that it is there when it is read. Any `at`: it is a hint.
    #[inline]
    pub(super) fn prefetch(&self, at: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.base.as_ptr().wrapping_add(at as usize).cast::<i8>();
            // SAFETY: a prefetch of whatever address is never a fault (Intel SDM volume 2, PREFETCHh).
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Plain bytes; `None` if they do not lie in the area.
    ///
    /// # Safety
    /// Nobody, the kernel included, writes these bytes while the borrow lasts.
    #[inline]
    pub(super) unsafe fn bytes(&self, at: u64, len: u32) -> Option<&[u8]> {
        let (at, len) = (usize::try_from(at).ok()?, len as usize);
        if at > self.bytes || self.bytes - at < len {
            return None;
        }
        // SAFETY: in bounds, just checked; alive as long as `self`; the caller answers for writers.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) })
    }
}
