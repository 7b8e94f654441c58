//! Sleeping: sets thresholds, waits, and clears the thresholds.

use std::time::Duration;

use super::page::line;
use super::{Sleeper, Woken};
use crate::doorbell::{self, AWAKE};
use crate::error::RingError;
use crate::reader::Reader;
use crate::sync::Ordering;
use crate::{Ring, Words};

impl Sleeper {
    /// Sleeps until any of the readers' rings has `frames` frames more than that reader has read, or until `limit` has
    /// passed, whichever comes first. Returns at once if a ring has so many frames already.
    ///
    /// `frames` counts for each ring separately. Reader `i` has line `i` of this sleeper, and the writer's side must
    /// use the same number for its ring. The end of a ring also ends the sleep, unless its reader has already reported
    /// the end ([`Reader::has_ended`]).
    ///
    /// # Errors
    /// [`RingError::Os`] if the kernel refuses to wait.
    ///
    /// # Panics
    /// If there are more readers than lines.
    pub fn sleep<M: Words>(
        &self,
        readers: &[Reader<M>],
        frames: u64,
        limit: Duration,
    ) -> Result<Woken, RingError> {
        self.sleep_on(readers.iter().enumerate(), frames, limit)
    }

    /// Does the same as [`sleep`](Sleeper::sleep) for readers with explicit lines, which must be different: for
    /// consumers whose rings join and leave. Lines without a reader cause no wake-up.
    ///
    /// # Errors
    /// As [`sleep`](Sleeper::sleep).
    ///
    /// # Panics
    /// If there is no such line.
    pub fn sleep_on<'a, M: Words + 'a>(
        &self,
        readers: impl Iterator<Item = (usize, &'a Reader<M>)> + Clone,
        frames: u64,
        limit: Duration,
    ) -> Result<Woken, RingError> {
        let mut is_new = false;
        for (ring, reader) in readers.clone() {
            assert!(ring < self.lines, "line {ring} of {}", self.lines);
            let word = line(&self.page, ring);
            let threshold = threshold_of(reader, frames);
            is_new |= word.load(Ordering::Relaxed) != threshold;
            doorbell::set_threshold(word, threshold);
        }
        let is_ready = || readers.clone().any(|(_, reader)| is_ready(reader, frames));
        let woken = match is_ready() {
            // Messages for earlier thresholds must not end the next sleep.
            true => Ok(self.receive().woken.unwrap_or(Woken::Frames)),
            false => self.wait(is_ready, limit, is_new),
        };
        // Thresholds stay set only after a wait that ended by its limit, because such a wait has told the writers of
        // them.
        if !matches!(woken, Ok(Woken::Limit)) {
            readers.for_each(|(ring, _)| self.free_line(ring));
        }
        woken
    }

    /// Clears the threshold of a line whose ring the consumer no longer waits for, so that another ring can use the
    /// line.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn free_line(&self, ring: usize) {
        assert!(ring < self.lines, "line {ring} of {}", self.lines);
        doorbell::clear_threshold(line(&self.page, ring));
    }
}

/// Returns the threshold: the ordinal `frames` after the reader's position, or [`AWAKE`] after the end of the ring.
pub(super) fn threshold_of<M: Words>(reader: &Reader<M>, frames: u64) -> u64 {
    if reader.has_ended() { AWAKE } else { reader.ordinal().saturating_add(frames) }
}

/// Whether the ring has enough frames, or an end that the reader has not reported.
pub(super) fn is_ready<M: Words>(reader: &Reader<M>, frames: u64) -> bool {
    let ring: &Ring<M> = reader.ring();
    !reader.has_ended()
        && (ring.is_closed() || ring.frames_written() >= reader.ordinal().saturating_add(frames))
}
