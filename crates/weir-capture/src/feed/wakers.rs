//! The sleepers of one feed, as one thread that fills its rings sees them.

use std::sync::Arc;

use weir_ring::wake::{Asked, Waker};

use crate::error::CaptureError;
use crate::feed::channel_poll::ChannelPoll;
use crate::feed::control::WakerSlot;

/// Wakers, each with the line that stands for the feed's first ring.
#[derive(Debug, Default)]
pub struct Wakers {
    wakers: Vec<AddedWaker>,
}

/// A sleeper of a feed.
#[derive(Debug)]
pub struct AddedWaker {
    slot: WakerSlot,
    waker: Waker,
    first: usize,
    /// Polls its channel.
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
    /// Adds a sleeper whose lines for this feed begin at `first`.
    pub fn add(&mut self, slot: WakerSlot, waker: Waker, first: usize) {
        self.wakers.push(AddedWaker { slot, waker, first, poll: None });
    }

    /// The same for a sleeper whose channel `poll` polls as long as it is here.
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

    /// Takes a sleeper out, to be dropped where no frame waits.
    pub fn remove(&mut self, slot: WakerSlot) -> Option<AddedWaker> {
        let at = self.wakers.iter().position(|own| own.slot == slot)?;
        Some(self.wakers.remove(at))
    }

    /// After publishing: wakes all sleepers that wait for no more than `ordinal` frames in the feed's ring
    /// number `ring`.
    #[inline]
    pub fn published(&mut self, ring: usize, ordinal: u64) {
        for AddedWaker { waker, first, .. } in &mut self.wakers {
            waker.wake_if_due(*first + ring, ordinal);
        }
    }

    /// The lowest threshold for ring number `ring` that `ordinal` does not reach.
    #[must_use]
    pub fn earliest(&self, ring: usize, ordinal: u64) -> u64 {
        let thresholds = self.wakers.iter().map(|own| own.waker.wake_threshold(own.first + ring));
        let pending = thresholds.filter(|&threshold| threshold > ordinal);
        pending.min().unwrap_or(weir_ring::doorbell::AWAKE)
    }

    /// Takes the messages of the sleepers, and removes those that are gone.
    pub(crate) fn take_messages(&mut self) {
        self.wakers.retain_mut(|own| own.waker.take_messages() != Asked::Gone);
    }

    /// Whether some sleeper waits for a confirmation.
    pub(crate) fn want_confirmation(&self) -> bool {
        self.wakers.iter().any(|own| own.waker.wants_confirmation())
    }

    /// Whether some sleeper sleeps by a confirmation.
    pub(crate) fn rely_on_confirmation(&self) -> bool {
        self.wakers.iter().any(|own| own.waker.relies_on_confirmation())
    }

    /// The wait begins that the confirmations need.
    pub(crate) fn begin_confirmations(&mut self) {
        self.wakers.iter_mut().for_each(|own| own.waker.begin_confirmation());
    }

    /// It is over, and all rings were looked at.
    pub(crate) fn finish_confirmations(&mut self) {
        self.wakers.iter_mut().for_each(|own| own.waker.finish_confirmation());
    }

    /// Wakes everybody: the rings are closed.
    pub fn wake_all(&self) {
        for own in &self.wakers {
            own.waker.wake();
        }
    }
}
