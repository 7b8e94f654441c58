//! How fast messages go out over UDP, which has no way to hold back.

use std::thread;
use std::time::{Duration, Instant};

use crate::limits::PACE_CREDIT_MAX;

/// When the next message may go.
pub(super) struct Pace {
    due: Instant,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace { due: Instant::now() }
    }

    /// Sleeps until a message may go that takes so long at its pace, and moves the time of the next one.
    pub(super) fn wait(&mut self, takes: Duration) {
        let now = Instant::now();
        thread::sleep(self.due.saturating_duration_since(now));
        let earliest = now.checked_sub(PACE_CREDIT_MAX).unwrap_or(now);
        self.due = self.due.max(earliest) + takes;
    }
}
