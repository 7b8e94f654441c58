//! Allows any thread to end the current turn of the source's thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::CaptureError;

/// An eventfd: readable from [`raise`](Interrupt::raise) until [`take`](Interrupt::take).
#[derive(Debug)]
pub(super) struct Interrupt(OwnedFd);

impl Interrupt {
    /// # Errors
    /// [`CaptureError::Os`]: no descriptors are left.
    pub(super) fn new() -> Result<Interrupt, CaptureError> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(Interrupt).map_err(|errno| CaptureError::os("creating an eventfd")(errno.into()))
    }

    pub(super) fn raise(&self) {
        // This fails only if the count is at its maximum; then the descriptor is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn take(&self) {
        // This fails only if the count is 0.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
