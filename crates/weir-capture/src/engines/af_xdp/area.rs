//! Memory that is shared with the kernel: a mapping whose accesses are checked, and which is unmapped when dropped.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags};
use weir_ring::memory::{HUGE_PAGE_BYTES, Pages, Placement, prefer_node};

/// A readable and writable mapping, shared with the kernel only.
#[derive(Debug)]
pub(super) struct Area {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is not bound to a thread. Its words are accessed as atomics, its bytes only through `bytes`,
// whose callers guarantee that nothing writes the bytes meanwhile.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned, and nothing borrows it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.bytes) };
    }
}

impl Area {
    /// Maps zeroed memory, and allocates all its pages.
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
        // MAP_POPULATE is not used, because huge pages must be requested before the first access.
        // SAFETY: the hint is null, so the kernel chooses an address where no other mapping is.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, prot, flags) }?;
        let area = Area::of(base, whole);
        if let Some(node) = node {
            prefer_node(area.base, whole, node);
        }
        // SAFETY: the advice concerns exactly our own mapping, and does not change its contents.
        unsafe {
            let _ = rustix::mm::madvise(base, whole, rustix::mm::Advice::LinuxHugepage);
            let _ = rustix::mm::madvise(base, whole, rustix::mm::Advice::LinuxPopulateWrite);
        }
        Ok(area)
    }

    /// Maps `bytes` bytes of the socket's ring that is at this offset of its descriptor.
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

    /// Returns the 32-bit word at byte `at`.
    ///
    /// # Panics
    /// If the word is not within the area, or `at` is not a multiple of 4.
    #[inline]
    pub(super) fn u32(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < self.bytes && self.bytes - at >= 4);
        // SAFETY: aligned and in bounds, just checked (the base is a page); alive as long as `self`; this process
        // and the kernel access ring words only atomically.
        unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU32>() }
    }

    /// Returns `count` words of 64 bits from byte `at` on.
    ///
    /// # Panics
    /// As [`u32`](Area::u32); `at` must be a multiple of 8.
    pub(super) fn u64s(&self, at: usize, count: usize) -> &[AtomicU64] {
        let end = count.checked_mul(8).and_then(|bytes| at.checked_add(bytes));
        assert!(at.is_multiple_of(8) && end.is_some_and(|end| end <= self.bytes));
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at).cast(), count) }
    }

    /// Prefetches the cache line of byte `at`. This is only a hint, so `at` may have any value.
    #[inline]
    pub(super) fn prefetch(&self, at: u64) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.base.as_ptr().wrapping_add(at as usize).cast::<i8>();
            // SAFETY: a prefetch never faults, whatever the address is (Intel SDM volume 2, PREFETCHh).
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Returns `len` bytes from byte `at` on; `None` if they are not within the area.
    ///
    /// # Safety
    /// Neither this process nor the kernel writes these bytes during the borrow.
    #[inline]
    pub(super) unsafe fn bytes(&self, at: u64, len: u32) -> Option<&[u8]> {
        let (at, len) = (usize::try_from(at).ok()?, len as usize);
        if at > self.bytes || self.bytes - at < len {
            return None;
        }
        // SAFETY: in bounds, just checked; alive as long as `self`; the caller guarantees that nothing writes the
        // bytes.
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) })
    }
}
