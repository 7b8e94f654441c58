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
    /// Creates a `Stop` that wakes the sleeper of `interrupter`.
    #[must_use]
    pub fn new(interrupter: Interrupter) -> Stop {
        let interrupter = AtomicPtr::new(Box::into_raw(Box::new(interrupter)));
        Stop { is_set: AtomicBool::new(false), interrupter }
    }

    /// Ends the current wait; if none is running, the next one. Any thread and signal handlers may call this.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.interrupter().interrupt();
    }

    /// Tells whether the wait must end.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Tells whether the flag was set, and clears it.
    pub fn take(&self) -> bool {
        let was_set = self.is_set.swap(false, Ordering::AcqRel);
        if was_set {
            // A call of `set` after this line sets the flag again.
            self.interrupter().take_back();
        }
        was_set
    }

    /// Replaces the interrupter: the child of a fork has another sleeper.
    pub fn replace(&self, interrupter: Interrupter) {
        let new = Box::into_raw(Box::new(interrupter));
        // The old interrupter is not freed, because a signal handler may be using it.
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
        // SAFETY: the pointer came from a box. The program promises not to call `set` (`weir_break`) for a closed feed.
        drop(unsafe { Box::from_raw(last) });
    }
}
