//! The sleepers of one feed, as one thread that fills its rings sees them.

use weir_ring::RingError;
use weir_ring::wake::{Asked, Waker};

use crate::feed::control::WakerSlot;

/// Wakers, each with the line that stands for the feed's first ring.
#[derive(Debug, Default)]
pub struct Wakers {
    wakers: Vec<(WakerSlot, Waker, usize)>,
}

impl Wakers {
    /// The same sleepers, for another thread that fills rings of the feed.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn try_clone(&self) -> Result<Wakers, RingError> {
        let clone = |(slot, waker, first): &(WakerSlot, Waker, usize)| {
            Ok((*slot, waker.try_clone()?, *first))
        };
        Ok(Wakers { wakers: self.wakers.iter().map(clone).collect::<Result<_, _>>()? })
    }

    /// Adds a sleeper whose lines for this feed begin at `first`.
    pub fn add(&mut self, slot: WakerSlot, waker: Waker, first: usize) {
        self.wakers.push((slot, waker, first));
    }

    /// Takes a sleeper out, to be dropped where no frame waits.
    pub fn remove(&mut self, slot: WakerSlot) -> Option<Waker> {
        let at = self.wakers.iter().position(|(own, ..)| *own == slot)?;
        Some(self.wakers.remove(at).1)
    }

    /// After publishing: wakes whoever waits for no more than `ordinal` frames in the feed's ring number `ring`.
    #[inline]
    pub fn published(&mut self, ring: usize, ordinal: u64) {
        for (_, waker, first) in &mut self.wakers {
            waker.wake_if_due(*first + ring, ordinal);
        }
    }

    /// The lowest threshold for ring number `ring` that `ordinal` does not reach.
    #[must_use]
    pub fn earliest(&self, ring: usize, ordinal: u64) -> u64 {
        let thresholds =
            self.wakers.iter().map(|(_, waker, first)| waker.wake_threshold(*first + ring));
        let pending = thresholds.filter(|&threshold| threshold > ordinal);
        pending.min().unwrap_or(weir_ring::doorbell::AWAKE)
    }

    /// Takes what the sleepers have sent, and lets go of those that are gone.
    pub(crate) fn take_messages(&mut self) {
        self.wakers.retain_mut(|(_, waker, _)| waker.take_messages() != Asked::Gone);
    }

    /// Whether some sleeper waits for a confirmation.
    pub(crate) fn want_confirmation(&self) -> bool {
        self.wakers.iter().any(|(_, waker, _)| waker.wants_confirmation())
    }

    /// Whether some sleeper sleeps by a confirmation.
    pub(crate) fn rely_on_confirmation(&self) -> bool {
        self.wakers.iter().any(|(_, waker, _)| waker.relies_on_confirmation())
    }

    /// The wait begins that the confirmations need.
    pub(crate) fn begin_confirmations(&mut self) {
        self.wakers.iter_mut().for_each(|(_, waker, _)| waker.begin_confirmation());
    }

    /// It is over, and all rings were looked at.
    pub(crate) fn finish_confirmations(&mut self) {
        self.wakers.iter_mut().for_each(|(_, waker, _)| waker.finish_confirmation());
    }

    /// Wakes everybody: the rings are closed.
    pub fn wake_all(&self) {
        for (_, waker, _) in &self.wakers {
            waker.wake();
        }
    }
}
