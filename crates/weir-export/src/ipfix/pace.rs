//! Limits the rate of messages. UDP has no flow control.

use std::thread;
use std::time::{Duration, Instant};

use crate::limits::PACE_CREDIT_MAX;

/// The time at which the next message may be sent.
pub(super) struct Pace {
    due: Instant,
}

impl Pace {
    pub(super) fn new() -> Pace {
        Pace { due: Instant::now() }
    }

    /// Sleeps until the next message may be sent. `takes` is the time that this message takes at the permitted rate;
    /// the next one is delayed by it.
    pub(super) fn wait(&mut self, takes: Duration) {
        let now = Instant::now();
        thread::sleep(self.due.saturating_duration_since(now));
        let earliest = now.checked_sub(PACE_CREDIT_MAX).unwrap_or(now);
        self.due = self.due.max(earliest) + takes;
    }
}
