//! Cancellation of threads (pthreads(7)): a program may cancel a thread that waits for frames.
//!
//! A cancelled thread unwinds its stack. It must never do so while this library works: a lock would stay taken, and a
//! frame of Rust's that has something to drop may not be unwound that way. So all work runs with cancellation disabled,
//! in slices no longer than [`WAIT_SLICE_MAX`](crate::limits::WAIT_SLICE_MAX), and between two slices, where nothing is
//! held, the function that the program has called tests for cancellation. Its type has to be deferred, as POSIX demands
//! for every function that it does not name.

use std::ffi::c_int;

/// `PTHREAD_CANCEL_DISABLE`. Source: pthread.h of glibc and of musl.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Cancellation of this thread is as it was before, once this is dropped.
struct Disabled {
    before: c_int,
}

impl Disabled {
    fn new() -> Disabled {
        let mut before = DISABLE;
        // SAFETY: a state that there is, and an integer that outlives the call, which keeps no pointer.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Disabled { before }
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        let mut disabled = DISABLE;
        // SAFETY: the state that `new` was given, and an integer that outlives the call. Cancellation that is enabled
        // does not act before a function that is a cancellation point, of which this is none.
        unsafe { pthread_setcancelstate(self.before, &mut disabled) };
    }
}

/// Runs `body` with cancellation disabled: whoever cancels the thread meanwhile cancels it later.
pub fn disabled<T>(body: impl FnOnce() -> T) -> T {
    let _disabled = Disabled::new();
    body()
}

/// Ends the thread if it was cancelled and may be.
///
/// # Safety
/// No frame between the program and this call has anything to drop, and no lock is held. The functions of these frames
/// are `C-unwind`, or Rust's own.
#[inline]
pub unsafe fn test() {
    // SAFETY: as the caller promises: it unwinds frames that may be left at any time.
    unsafe { pthread_testcancel() };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        disabled(|| ());
        let mut now = 0;
        // SAFETY: it is set to what it is before anybody else asks.
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
