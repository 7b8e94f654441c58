//! Notes of how many frames a ring had at certain times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The notes of one ring, oldest first.
#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: VecDeque<(Instant, u64)>,
    released: u64,
}

impl Notes {
    /// Notes that the ring has this many frames, so those below `ordinal`, at time `now`.
    pub(super) fn push(&mut self, now: Instant, ordinal: u64) {
        self.notes.push_back((now, ordinal));
    }

    /// Releases the frames of notes that are at least `slack` old.
    pub(super) fn release(&mut self, now: Instant, slack: Duration) {
        while let Some((taken, ordinal)) = self.notes.front()
            && now.saturating_duration_since(*taken) >= slack
        {
            self.released = *ordinal;
            self.notes.pop_front();
        }
    }

    /// Returns the ordinal below which frames need not wait for empty rings.
    pub(super) fn released(&self) -> u64 {
        self.released
    }

    /// Returns the time of the oldest note that includes the frame with this ordinal; `None` if all notes are older.
    pub(super) fn when_beyond(&self, ordinal: u64) -> Option<Instant> {
        self.notes.iter().find(|(_, noted)| ordinal < *noted).map(|(taken, _)| *taken)
    }
}
