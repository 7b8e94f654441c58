//! Notes of how far a ring was written at some times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The notes of one ring, oldest first.
#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: VecDeque<(Instant, u64)>,
    released: u64,
}

impl Notes {
    /// By `now` the ring had so many frames.
    pub(super) fn push(&mut self, now: Instant, ordinal: u64) {
        self.notes.push_back((now, ordinal));
    }

    /// Releases what notes have that are `slack` old.
    pub(super) fn release(&mut self, now: Instant, slack: Duration) {
        while let Some((taken, ordinal)) = self.notes.front()
            && now.saturating_duration_since(*taken) >= slack
        {
            self.released = *ordinal;
            self.notes.pop_front();
        }
    }

    /// Frames below this ordinal need not wait for empty rings.
    pub(super) fn released(&self) -> u64 {
        self.released
    }

    /// When the first note was taken that has a frame of this ordinal.
    pub(super) fn when_beyond(&self, ordinal: u64) -> Option<Instant> {
        self.notes.iter().find(|(_, noted)| ordinal < *noted).map(|(taken, _)| *taken)
    }
}
