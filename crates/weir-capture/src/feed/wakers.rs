//! Those who wait for frames of a source.

use weir_ring::wake::Waker;

/// The sleepers of a source.
#[derive(Debug, Default)]
pub struct Wakers {
    wakers: Vec<(Waker, usize)>,
}

impl Wakers {
    /// The same sleepers, for another thread that writes other rings of the source.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn try_clone(&self) -> Result<Wakers, weir_ring::RingError> {
        let clone = |(waker, first): &(Waker, usize)| Ok((waker.try_clone()?, *first));
        Ok(Wakers { wakers: self.wakers.iter().map(clone).collect::<Result<_, _>>()? })
    }

    /// Adds a sleeper whose lines for this source begin at `first`.
    pub fn add(&mut self, waker: Waker, first: usize) {
        self.wakers.push((waker, first));
    }

    /// After publishing: wakes whoever waits for no more than `ordinal` frames in the source's ring
    /// number `ring`.
    #[inline]
    pub fn published(&mut self, ring: usize, ordinal: u64) {
        for (waker, first) in &mut self.wakers {
            waker.wake_if_due(*first + ring, ordinal);
        }
    }

    /// The lowest threshold for ring number `ring` that `ordinal` does not fulfil.
    #[must_use]
    pub fn earliest(&self, ring: usize, ordinal: u64) -> u64 {
        let thresholds =
            self.wakers.iter().map(|(waker, first)| waker.wake_threshold(*first + ring));
        thresholds
            .filter(|&threshold| threshold > ordinal)
            .min()
            .unwrap_or(weir_ring::doorbell::AWAKE)
    }

    /// Wakes everybody: the rings are closed.
    pub fn wake_all(&self) {
        for (waker, _) in &self.wakers {
            waker.wake();
        }
    }
}
