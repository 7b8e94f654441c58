//! Descriptors: how they are passed on, and those by which consumers in this process tell an owner of BPF rings of new
//! thresholds.

use std::io::IoSliceMut;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::ReadWriteFlags;

use crate::error::RingError;

/// Adds one to a notify descriptor, an eventfd of an owner in this process, which must not let it run full.
pub fn signal(notify_fd: BorrowedFd<'_>) {
    let _ = rustix::io::write(notify_fd, &1u64.to_ne_bytes());
}

/// Empties a notify descriptor. Never waits, even if somebody has cleared `O_NONBLOCK` on the eventfd.
pub fn drain(notify_fd: BorrowedFd<'_>) {
    let mut count = [0; 8];
    let mut bytes = [IoSliceMut::new(&mut count)];
    // `u64::MAX`: no offset. NOWAIT belongs to the call.
    let _ = rustix::io::preadv2(notify_fd, &mut bytes, u64::MAX, ReadWriteFlags::NOWAIT);
}

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
}
