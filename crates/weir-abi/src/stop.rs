//! Ends a wait of a feed from other threads and signal handlers.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use weir_ring::wake::Interrupter;

/// Ends a wait. It takes no locks, because signal handlers use it.
pub struct Stop {
    is_set: AtomicBool,
    interrupter: AtomicPtr<Interrupter>,
}

impl Stop {
    /// Makes one for the sleeper of this interrupter.
    #[must_use]
    pub fn new(interrupter: Interrupter) -> Stop {
        let interrupter = AtomicPtr::new(Box::into_raw(Box::new(interrupter)));
        Stop { is_set: AtomicBool::new(false), interrupter }
    }

    /// Ends the present wait, or else the next one. May be called by any thread and by signal handlers.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.interrupter().interrupt();
    }

    /// Whether the wait must end.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Whether it was set. Resets it.
    pub fn take(&self) -> bool {
        let was_set = self.is_set.swap(false, Ordering::AcqRel);
        if was_set {
            // A call of `set` after this line sets the flag again.
            self.interrupter().take_back();
        }
        was_set
    }

    /// Uses another interrupter: in the child of a fork, which has another sleeper.
    pub fn replace(&self, interrupter: Interrupter) {
        let new = Box::into_raw(Box::new(interrupter));
        // The old one is not freed, because a signal handler may be using it.
        self.interrupter.swap(new, Ordering::AcqRel);
    }

    fn interrupter(&self) -> &Interrupter {
        // SAFETY: the pointer came from a box (`new`, `replace`), and only `drop` frees it.
        unsafe { &*self.interrupter.load(Ordering::Acquire) }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        let last = self.interrupter.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the pointer came from a box, and `set` is not called any more for a feed that is closed.
        drop(unsafe { Box::from_raw(last) });
    }
}
