//! One descriptor for the channels of all consumers, for an engine whose thread sleeps until a consumer, in
//! any process, sends a message.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use weir_ring::wake::Waker;

use crate::error::CaptureError;

/// An epoll instance. A channel must be removed before its descriptor is closed: if another process has a
/// duplicate of the descriptor, closing does not remove it, and unread messages would keep the epoll
/// instance readable forever.
#[derive(Debug)]
pub(crate) struct ChannelPoll(OwnedFd);

impl ChannelPoll {
    pub(crate) fn new() -> Result<ChannelPoll, CaptureError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC);
        epoll.map(ChannelPoll).map_err(|errno| CaptureError::os("creating an epoll")(errno.into()))
    }

    /// Polls this channel from now on, also for messages that are already there.
    pub(super) fn add(&self, waker: &Waker) -> Result<(), CaptureError> {
        let unused = epoll::EventData::new_u64(0);
        let added = epoll::add(&self.0, waker, unused, epoll::EventFlags::IN);
        added.map_err(|errno| CaptureError::os("polling a consumer's channel")(errno.into()))
    }

    pub(super) fn remove(&self, waker: &Waker) {
        // This cannot fail: `add` has added it, and its descriptor is open.
        let _ = epoll::delete(&self.0, waker);
    }
}

impl AsFd for ChannelPoll {
    /// Returns a descriptor that is readable while there are unread messages.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
