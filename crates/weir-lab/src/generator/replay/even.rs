//! Sends frames of different sizes at a given rate: each frame is due when the time of the frames before it has passed.
//! The code is only arithmetic; the caller passes the time.

use std::time::Duration;

use super::super::Rate;
use super::super::bucket::{DEPTH_NS, GRANT_NS};

/// Computes when frames are due at a given rate.
pub(super) struct Even {
    rate: Rate,
    /// Time at which the next frame is due, in nanoseconds since the start.
    due_ns: f64,
    given_up_ns: f64,
}

impl Even {
    /// Creates the schedule. The first frame is due at once. The rate is above zero. At [`Rate::Max`], all frames are
    /// due at once.
    pub(super) fn new(rate: Rate) -> Even {
        Even { rate, due_ns: 0.0, given_up_ns: 0.0 }
    }

    /// Returns the time at which the next frame, of `wire_bytes` with FCS, is due. `now` is the current time of the
    /// sender. If the sender is more than 50 ms late, the excess is given up, as in the token bucket.
    pub(super) fn next(&mut self, wire_bytes: usize, now: Duration) -> Duration {
        let behind = now.as_nanos() as f64 - self.due_ns - DEPTH_NS;
        if behind > 0.0 {
            self.given_up_ns += behind;
            self.due_ns += behind;
        }
        let due_ns = self.due_ns;
        self.due_ns += self.takes_ns(wire_bytes);
        // At a very low rate, the next frame may be due in centuries.
        Duration::try_from_secs_f64(due_ns / 1e9).unwrap_or(Duration::MAX)
    }

    /// Returns how long a frame of `wire_bytes` may wait for later frames; 0 if the next frame is due only after a
    /// grant's duration.
    pub(super) fn gather(&self, wire_bytes: usize) -> Duration {
        let close = self.takes_ns(wire_bytes) < GRANT_NS;
        Duration::from_nanos(if close { GRANT_NS as u64 } else { 0 })
    }

    /// Returns the time that was given up.
    pub(super) fn given_up(&self) -> Duration {
        Duration::from_nanos(self.given_up_ns as u64)
    }

    fn takes_ns(&self, wire_bytes: usize) -> f64 {
        match self.rate {
            Rate::Max => 0.0,
            Rate::Pps(rate) => 1e9 / rate,
            Rate::Bps(rate) => wire_bytes as f64 * 8e9 / rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    #[test]
    fn frames_are_due_at_the_rate_and_bits_by_their_size() {
        let mut even = Even::new(Rate::Pps(1_000.0));
        let due = [64, 1518, 64].map(|bytes| even.next(bytes, AT_ONCE).as_micros());
        assert_eq!(due, [0, 1_000, 2_000]);
        let mut even = Even::new(Rate::Bps(8_000_000.0));
        let due = [64, 1500, 64].map(|bytes| even.next(bytes, AT_ONCE).as_micros());
        assert_eq!(due, [0, 64, 1_564]);
        // At this rate, small frames are close together, and large ones are not.
        assert_eq!((even.gather(64).as_micros(), even.gather(1500).as_micros()), (200, 0));
    }

    #[test]
    fn more_than_50_ms_behind_is_given_up() {
        let mut even = Even::new(Rate::Pps(1_000.0));
        assert_eq!(even.next(64, Duration::from_millis(40)), AT_ONCE);
        assert_eq!(even.given_up(), AT_ONCE);
        assert_eq!(even.next(64, Duration::from_millis(151)).as_millis(), 101);
        assert_eq!(even.given_up().as_millis(), 100);
    }

    #[test]
    fn the_slowest_rate_is_far_away_and_no_panic() {
        let mut even = Even::new(Rate::Pps(f64::MIN_POSITIVE));
        assert_eq!(even.next(64, AT_ONCE), AT_ONCE);
        assert_eq!(even.next(64, AT_ONCE), Duration::MAX);
    }
}
