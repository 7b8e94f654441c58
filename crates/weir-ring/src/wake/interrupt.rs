//! Ends a sleep from another thread.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::RingError;

pub(super) fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, RingError> {
    let doing = "duplicating a descriptor";
    fd.try_clone_to_owned().map_err(|source| RingError::Os { doing, source })
}

/// Ends a sleep from another thread.
#[derive(Debug)]
pub struct Interrupter(pub(super) OwnedFd);

impl Interrupter {
    /// Ends the sleep that is under way, or else the next one.
    pub fn interrupt(&self) {
        // Full after 2^64 - 2 calls that nobody took notice of; then the sleep ends, too.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes back what no sleep has noticed yet.
    pub fn take_back(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}
