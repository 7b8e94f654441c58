//! A rate limit.

use std::time::{Duration, Instant};

/// Limits the rate of events: the events of one second may come at once, and further events must wait.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Time between two events at the limit.
    step: Duration,
    /// How far `due` may be ahead of the clock: almost one second.
    ahead_max: Duration,
    /// When the next event would be due if all events came evenly.
    due: Instant,
}

impl Pace {
    /// Creates a limit of `per_second` events a second, at least one.
    #[must_use]
    pub fn new(per_second: u32, now: Instant) -> Pace {
        let step = Duration::from_secs(1) / per_second.max(1);
        Pace { step, ahead_max: Duration::from_secs(1) - step, due: now }
    }

    /// Counts an event. Returns how long it must wait.
    pub fn take(&mut self, now: Instant) -> Duration {
        let due = self.due.max(now);
        self.due = due + self.step;
        due.saturating_duration_since(now).saturating_sub(self.ahead_max)
    }

    /// Counts an event if it need not wait. Else returns `false` and does not count it.
    pub fn try_take(&mut self, now: Instant) -> bool {
        let before = self.due;
        let has_time = self.take(now).is_zero();
        if !has_time {
            self.due = before;
        }
        has_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seconds_worth_at_once_and_then_evenly() {
        let start = Instant::now();
        let mut pace = Pace::new(10, start);
        assert!((0..10).all(|_| pace.take(start).is_zero()));
        assert_eq!(pace.take(start), Duration::from_millis(100));
        assert_eq!(pace.take(start), Duration::from_millis(200));
        // A long pause is no more than a second's worth.
        let later = start + Duration::from_secs(100);
        assert!((0..10).all(|_| pace.try_take(later)));
        assert!((0..5).all(|_| !pace.try_take(later)));
        assert!(pace.try_take(later + Duration::from_millis(100)));
    }
}
