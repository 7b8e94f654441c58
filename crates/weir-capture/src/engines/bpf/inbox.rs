//! The channels of all consumers of the hook's rings, behind one descriptor: the source's thread hears of new
//! thresholds by it, wherever the consumer runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use weir_ring::wake::Waker;

use crate::error::CaptureError;

/// An epoll instance of channels. One that is let go of leaves by itself.
pub(super) struct Inbox(OwnedFd);

impl Inbox {
    pub(super) fn new() -> Result<Inbox, CaptureError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Inbox(epoll.map_err(|errno| CaptureError::os("creating an inbox")(errno.into()))?))
    }

    /// Hears of what this consumer sends from now on, and of what it has sent already.
    pub(super) fn listen_to(&self, waker: &Waker) -> Result<(), CaptureError> {
        let unused = epoll::EventData::new_u64(0);
        let added = epoll::add(&self.0, waker, unused, epoll::EventFlags::IN);
        added.map_err(|errno| CaptureError::os("listening to a consumer")(errno.into()))
    }
}

impl AsFd for Inbox {
    /// Readable while a consumer has sent something that was not taken, or is gone and was not let go of.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
