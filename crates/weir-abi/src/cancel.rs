//! Cancellation of threads (pthreads(7)): a program may cancel a thread that waits for frames.
//!
//! A cancelled thread unwinds its stack. That must not happen while this library works: a lock would stay taken, and it
//! is undefined behaviour to unwind a Rust stack frame with values to drop in this way. So work runs with
//! cancellation disabled, or has no cancellation point. A wait is cut into slices no longer than
//! [`WAIT_SLICE_MAX`](crate::limits::WAIT_SLICE_MAX). Between two slices no lock is held, and the function that the
//! program has called tests for cancellation. The cancellation type of the thread must be deferred: POSIX lists the few
//! functions that may be called with the asynchronous type, and ours are not among them.

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE`. Source: pthread.h of glibc and of musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// As long as this value exists, cancellation of the thread is disabled. Dropping it restores the former state.
struct Disabled {
    before: c_int,
}

impl Disabled {
    fn new() -> Disabled {
        let mut before = DISABLE;
        // SAFETY: the state is valid, and the integer outlives the call, which keeps no pointer.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Disabled { before }
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        let mut disabled = DISABLE;
        // SAFETY: the state is the one that `new` has read, and the integer outlives the call. If this enables
        // cancellation, a pending request takes effect at the next cancellation point, and this function is none.
        unsafe { pthread_setcancelstate(self.before, &mut disabled) };
    }
}

/// Runs `body` with cancellation disabled. A request to cancel the thread stays pending meanwhile.
pub fn disabled<T>(body: impl FnOnce() -> T) -> T {
    let _disabled = Disabled::new();
    body()
}

/// Ends the thread if a request to cancel it is pending and cancellation is enabled.
///
/// # Safety
/// No stack frame between the program and this call has a value to drop, and no lock is held. The functions of these
/// frames are `C-unwind` or Rust functions.
#[inline]
pub unsafe fn test() {
    // SAFETY: the caller promises that the stack frames which this call may unwind drop nothing and hold no lock.
    unsafe { pthread_testcancel() };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        disabled(|| ());
        let mut now = 0;
        // SAFETY: the integers outlive the calls, and the second call restores the state.
        unsafe {
            pthread_setcancelstate(DISABLE, &mut now);
            pthread_setcancelstate(now, &mut 0);
        }
        now
    }

    #[test]
    fn cancellation_is_as_the_program_had_it_behind_each_call() {
        const ENABLE: c_int = 0;
        assert_eq!(state(), ENABLE);
        assert_eq!(disabled(|| [state(), disabled(state)]), [DISABLE; 2]);
        assert_eq!(state(), ENABLE, "also behind a call in a call");
        let panicked = crate::caught(|| disabled(|| panic!("a fault")));
        assert!(panicked.is_err());
        assert_eq!(state(), ENABLE, "also behind a panic");
    }
}
