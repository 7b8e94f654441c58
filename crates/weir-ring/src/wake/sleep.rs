//! A sleep: thresholds set, a wait, thresholds cleared.

use std::time::Duration;

use super::page::line;
use super::{Sleeper, Woken};
use crate::doorbell::{self, AWAKE};
use crate::error::RingError;
use crate::reader::Reader;
use crate::sync::Ordering;
use crate::{Ring, Words};

impl Sleeper {
    /// Sleeps until any of the readers' rings has `frames` frames more than that reader has read, or
    /// until `limit` has passed, whichever comes first; returns at once if it is so already.
    ///
    /// `frames` counts per ring. Reader `i` has line `i` of this sleeper, and a writer's side must know that ring
    /// by the same number. The end of a ring wakes too, until its reader has been told of it
    /// ([`Reader::has_ended`]).
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

    /// The same where each reader comes with its line, which no other has: for consumers whose rings come and go.
    /// Lines without a reader lead to no wake-up.
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
        // Thresholds that stand were told to everybody: only a wait that told of its thresholds leaves them.
        if !matches!(woken, Ok(Woken::Limit)) {
            readers.for_each(|(ring, _)| self.free_line(ring));
        }
        woken
    }

    /// Clears the threshold of a line whose ring is not waited for any more, so that another ring can have the line.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn free_line(&self, ring: usize) {
        assert!(ring < self.lines, "line {ring} of {}", self.lines);
        doorbell::clear_threshold(line(&self.page, ring));
    }
}

/// The ordinal that wakes: `frames` more than were read.
pub(super) fn threshold_of<M: Words>(reader: &Reader<M>, frames: u64) -> u64 {
    if reader.has_ended() { AWAKE } else { reader.ordinal().saturating_add(frames) }
}

/// Wakes on enough frames, or on an end that the reader has not seen.
pub(super) fn is_ready<M: Words>(reader: &Reader<M>, frames: u64) -> bool {
    let ring: &Ring<M> = reader.ring();
    !reader.has_ended()
        && (ring.is_closed() || ring.frames_written() >= reader.ordinal().saturating_add(frames))
}
