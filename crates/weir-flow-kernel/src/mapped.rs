//! Maps of the kernel, mapped as words.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Words of an array map, which programs may write at any time.
pub struct Mapped {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to this value alone, is bound to no thread, and is only reached through atomics.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps the first `words` words of an array map, which must have at least as many.
    pub fn new(map: BorrowedFd<'_>, words: usize, writable: bool) -> io::Result<Mapped> {
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base =
            unsafe { mmap(std::ptr::null_mut(), words * 8, protection, MapFlags::SHARED, map, 0)? };
        let base = NonNull::new(base.cast()).expect("mmap gives no null without MAP_FIXED");
        Ok(Mapped { base, words })
    }

    /// Returns all words. Those of a map that is not `writable` must only be loaded.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` words are mapped until drop, which needs that no borrow is left; the kernel refuses to map
        // more than the map has. A page is aligned for them. Other writers are programs in the kernel, and every access
        // from here is atomic.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` got, and no borrow of it is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}
