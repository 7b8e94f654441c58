//! Cancellation of threads (pthreads(7)): a program may cancel a thread that waits for frames.
//!
//! A cancelled thread unwinds its stack. It must never do so while this library works: a lock would stay taken, and
//! a stack frame of Rust that has values to drop may not be unwound that way. So all work runs with cancellation
//! disabled, in slices no longer than [`WAIT_SLICE_MAX`](crate::limits::WAIT_SLICE_MAX). Between two slices nothing
//! is held, and the function that the program has called tests for cancellation. The cancellation type must be
//! deferred, as POSIX requires for all functions that it does not list.

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE`. Source: pthread.h of glibc and of musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Cancellation is disabled; dropping this restores the former state.
struct Disabled {
    before: c_int,
}

impl Disabled {
    fn new() -> Disabled {
        let mut before = DISABLE;
        // SAFETY: a valid state, and an integer that outlives the call, which keeps no pointer.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Disabled { before }
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        let mut disabled = DISABLE;
        // SAFETY: the state that `new` has read, and an integer that outlives the call. If cancellation is enabled, it
        // takes effect only at a cancellation point, which this function is not.
        unsafe { pthread_setcancelstate(self.before, &mut disabled) };
    }
}

/// Runs `body` with cancellation disabled: a cancellation that is requested meanwhile takes effect later.
pub fn disabled<T>(body: impl FnOnce() -> T) -> T {
    let _disabled = Disabled::new();
    body()
}

/// Ends the thread if it was cancelled and may be.
///
/// # Safety
/// No stack frame between the program and this call has a value to drop, and no lock is held. The functions of these
/// frames are `C-unwind` or Rust functions.
#[inline]
pub unsafe fn test() {
    // SAFETY: it unwinds stack frames that may be left at any time, as the caller promises.
    unsafe { pthread_testcancel() };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        disabled(|| ());
        let mut now = 0;
        // SAFETY: the state is restored before anything else depends on it.
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
