//! Ends a wait of a feed from other threads and signal handlers.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use weir_ring::wake::Interrupter;

/// Ends a wait. No locks: signal handlers use it.
pub struct Stop {
    is_set: AtomicBool,
    interrupter: AtomicPtr<Interrupter>,
}

impl Stop {
    /// Of a sleeper that this interrupts.
    #[must_use]
    pub fn new(interrupter: Interrupter) -> Stop {
        let interrupter = AtomicPtr::new(Box::into_raw(Box::new(interrupter)));
        Stop { is_set: AtomicBool::new(false), interrupter }
    }

    /// From any thread, and from signal handlers.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.interrupter().interrupt();
    }

    /// Whether a wait is to end.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Whether it was set; it is not any more.
    pub fn take(&self) -> bool {
        let was_set = self.is_set.swap(false, Ordering::AcqRel);
        if was_set {
            // One that comes behind this line sets the flag anew.
            self.interrupter().take_back();
        }
        was_set
    }

    /// In the child of a fork, whose sleeper is another.
    pub fn replace(&self, interrupter: Interrupter) {
        let new = Box::into_raw(Box::new(interrupter));
        // The old one is not freed: a signal handler may be at it.
        self.interrupter.swap(new, Ordering::AcqRel);
    }

    fn interrupter(&self) -> &Interrupter {
        // SAFETY: it came from a box (`new`, `replace`) and is freed by `drop` only.
        unsafe { &*self.interrupter.load(Ordering::Acquire) }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        let last = self.interrupter.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: it came from a box, and nobody ends waits of a feed any more that is closed.
        drop(unsafe { Box::from_raw(last) });
    }
}
