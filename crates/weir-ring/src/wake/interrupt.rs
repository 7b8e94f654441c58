//! Interrupts a sleep from another thread.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::RingError;

pub(super) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, RingError> {
    let doing = "duplicating a descriptor";
    fd.try_clone_to_owned().map_err(|source| RingError::Os { doing, source })
}

/// Interrupts a sleep from another thread.
#[derive(Debug)]
pub struct Interrupter(pub(super) OwnedFd);

impl Interrupter {
    /// Interrupts the present sleep; if there is none, the next one.
    pub fn interrupt(&self) {
        // The eventfd is full after 2^64 - 2 calls without a sleep. Then it is readable, so the next sleep ends anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Withdraws an interrupt that no sleep has noticed yet.
    pub fn take_back(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}
