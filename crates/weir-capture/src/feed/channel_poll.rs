//! The channels of consumers behind one descriptor, for an engine whose thread sleeps until one of them has sent
//! something, wherever the consumer runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use weir_ring::wake::Waker;

use crate::error::CaptureError;

/// An epoll instance. Channels are taken out before their descriptor is closed: the other process may have a copy of
/// it, and what nobody reads any more would be readable for good.
#[derive(Debug)]
pub(crate) struct ChannelPoll(OwnedFd);

impl ChannelPoll {
    pub(crate) fn new() -> Result<ChannelPoll, CaptureError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        epoll.map(ChannelPoll).map_err(|errno| CaptureError::os("creating an epoll")(errno.into()))
    }

    /// Polls this channel from now on; what is there already counts.
    pub(super) fn add(&self, waker: &Waker) -> Result<(), CaptureError> {
        let unused = epoll::EventData::new_u64(0);
        let added = epoll::add(&self.0, waker, unused, epoll::EventFlags::IN);
        added.map_err(|errno| CaptureError::os("polling a consumer's channel")(errno.into()))
    }

    pub(super) fn remove(&self, waker: &Waker) {
        // It is there: only `add` has put it there, and its descriptor is open.
        let _ = epoll::delete(&self.0, waker);
    }
}

impl AsFd for ChannelPoll {
    /// Readable while a consumer has sent something that was not taken.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
