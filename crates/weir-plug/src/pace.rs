//! At most so many a second.

use std::time::{Duration, Instant};

/// Lets a second's worth through at once, and then so many a second.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Time that one takes.
    step: Duration,
    /// How far ahead of the clock it may be: a second's worth.
    ahead_max: Duration,
    /// When the next one would be due if all came evenly.
    due: Instant,
}

impl Pace {
    /// `per_second` of them, at least one.
    #[must_use]
    pub fn new(per_second: u32, now: Instant) -> Pace {
        let step = Duration::from_secs(1) / per_second.max(1);
        Pace { step, ahead_max: Duration::from_secs(1) - step, due: now }
    }

    /// One more came; gives how long it has to wait.
    pub fn take(&mut self, now: Instant) -> Duration {
        let due = self.due.max(now);
        self.due = due + self.step;
        due.saturating_duration_since(now).saturating_sub(self.ahead_max)
    }

    /// One more came; `false` if it is one too many, and then it does not count.
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
