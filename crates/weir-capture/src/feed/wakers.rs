//! The wakers of one feed, owned by one thread that fills its rings.

use std::sync::Arc;

use weir_ring::wake::{Asked, Waker};

use crate::error::CaptureError;
use crate::feed::channel_poll::ChannelPoll;
use crate::feed::control::WakerSlot;

/// Wakers, each with its line for the feed's first ring.
#[derive(Debug, Default)]
pub struct Wakers {
    wakers: Vec<AddedWaker>,
}

/// A waker of a feed.
#[derive(Debug)]
pub struct AddedWaker {
    slot: WakerSlot,
    waker: Waker,
    first: usize,
    /// The epoll instance that polls its channel.
    poll: Option<Arc<ChannelPoll>>,
}

impl Drop for AddedWaker {
    fn drop(&mut self) {
        if let Some(poll) = &self.poll {
            poll.remove(&self.waker);
        }
    }
}

impl Wakers {
    /// Adds a waker whose lines for this feed begin at `first`.
    pub fn add(&mut self, slot: WakerSlot, waker: Waker, first: usize) {
        self.wakers.push(AddedWaker { slot, waker, first, poll: None });
    }

    /// As [`add`](Wakers::add). `poll` polls the waker's channel until it is removed.
    pub(crate) fn add_polled(
        &mut self,
        slot: WakerSlot,
        waker: Waker,
        first: usize,
        poll: &Arc<ChannelPoll>,
    ) -> Result<(), CaptureError> {
        poll.add(&waker)?;
        self.wakers.push(AddedWaker { slot, waker, first, poll: Some(Arc::clone(poll)) });
        Ok(())
    }

    /// Removes a waker and returns it. It should be dropped by a thread that moves no frames.
    pub fn remove(&mut self, slot: WakerSlot) -> Option<AddedWaker> {
        let at = self.wakers.iter().position(|own| own.slot == slot)?;
        Some(self.wakers.remove(at))
    }

    /// Wakes all readers whose threshold for the feed's ring number `ring` is at most `ordinal`. Call this after
    /// publishing.
    #[inline]
    pub fn published(&mut self, ring: usize, ordinal: u64) {
        for AddedWaker { waker, first, .. } in &mut self.wakers {
            waker.wake_if_due(*first + ring, ordinal);
        }
    }

    /// Wakes the readers that wait for a quarter. Call this when another quarter of the feed's ring number `ring` has
    /// begun.
    pub(crate) fn filled_quarter(&self, ring: usize) {
        for own in &self.wakers {
            own.waker.wake_for_quarter(own.first + ring);
        }
    }

    /// Tells those readers that asked for it that the doorbell is armed. Call this when it is armed for all thresholds.
    pub(crate) fn tell_armed(&mut self) {
        self.wakers.iter_mut().for_each(|own| own.waker.tell_armed());
    }

    /// Returns the lowest threshold for ring number `ring` that is above `ordinal`; `AWAKE` if there is none.
    #[must_use]
    pub fn earliest(&self, ring: usize, ordinal: u64) -> u64 {
        let thresholds = self.wakers.iter().map(|own| own.waker.wake_threshold(own.first + ring));
        let pending = thresholds.filter(|&threshold| threshold > ordinal);
        pending.min().unwrap_or(weir_ring::doorbell::AWAKE)
    }

    /// Takes the readers' messages, and removes the wakers of readers that have closed their channel.
    pub(crate) fn take_messages(&mut self) {
        self.wakers.retain_mut(|own| own.waker.take_messages() != Asked::Gone);
    }

    /// Returns whether a reader waits for a confirmation.
    pub(crate) fn want_confirmation(&self) -> bool {
        self.wakers.iter().any(|own| own.waker.wants_confirmation())
    }

    /// Returns whether a reader sleeps because of a confirmation.
    pub(crate) fn rely_on_confirmation(&self) -> bool {
        self.wakers.iter().any(|own| own.waker.relies_on_confirmation())
    }

    /// Tells the wakers that the wait for all running programs begins, after which readers get their confirmations.
    pub(crate) fn begin_confirmations(&mut self) {
        self.wakers.iter_mut().for_each(|own| own.waker.begin_confirmation());
    }

    /// Confirms to the readers. Call this when the wait is over and all rings were checked.
    pub(crate) fn finish_confirmations(&mut self) {
        self.wakers.iter_mut().for_each(|own| own.waker.finish_confirmation());
    }

    /// Wakes all readers, because the rings are closed.
    pub fn wake_all(&self) {
        for own in &self.wakers {
            own.waker.wake();
        }
    }
}
