//! The times at which the frames of a recording are replayed: timestamps converted into times after the first frame.

use std::time::Duration;

/// The speed at which a recording is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Speed {
    /// As fast as possible.
    #[default]
    Top,
    /// This many times as fast as the timestamps; 1 is real time. Above zero and finite.
    Times(f64),
}

/// The times of one pass through a recording. It only computes: the caller has the clock.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    times: f64,
    first_ns: Option<u64>,
}

impl Schedule {
    /// Creates a schedule that runs `times` as fast as the timestamps.
    #[must_use]
    pub const fn new(times: f64) -> Schedule {
        Schedule { times, first_ns: None }
    }

    /// Returns how long after the first frame this frame is due. The first frame is the one of the first call. Frames
    /// with earlier timestamps than the first are due at once. If the result does not fit, because a timestamp is
    /// wrong by centuries, it is `Duration::MAX`.
    pub fn due(&mut self, ts_ns: u64) -> Duration {
        let first_ns = *self.first_ns.get_or_insert(ts_ns);
        let seconds = ts_ns.saturating_sub(first_ns) as f64 / 1e9 / self.times;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// Restarts the schedule: the next frame is the first frame again.
    pub fn restart(&mut self) {
        self.first_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_the_stamps_at_the_speed() {
        let mut schedule = Schedule::new(2.0);
        assert_eq!(schedule.due(1_700_000_000_000_000_000), Duration::ZERO);
        assert_eq!(schedule.due(1_700_000_001_000_000_000), Duration::from_millis(500));
        assert_eq!(schedule.due(1_600_000_000_000_000_000), Duration::ZERO);
        schedule.restart();
        assert_eq!(schedule.due(5), Duration::ZERO);
        assert_eq!(schedule.due(2_000_005), Duration::from_millis(1));
    }

    #[test]
    fn nonsense_is_far_away_and_no_panic() {
        let mut schedule = Schedule::new(1e-300);
        assert_eq!(schedule.due(0), Duration::ZERO);
        assert_eq!(schedule.due(u64::MAX), Duration::MAX);
    }
}
