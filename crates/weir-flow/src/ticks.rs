//! Time according to the timestamps of frames.
//!
//! The time of a table only moves forward, and only by plausible amounts: a timestamp that is far from the last one
//! changes the reference point instead, and is counted as a clock step.

use std::time::Duration;

use crate::limits::{CLOCK_AHEAD_MAX, CLOCK_BACK_MAX};

/// Time since the first timestamp, in nanoseconds; clock steps are left out.
#[derive(Debug, Default)]
pub struct TableTime {
    started: bool,
    /// The latest timestamp.
    stamp_ns: u64,
    /// The table's time at the latest timestamp.
    pub elapsed_ns: u64,
}

/// The result of moving to a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Time has moved forward or is unchanged.
    On,
    /// A clock was set ahead.
    SteppedAhead,
    /// A clock was set back.
    SteppedBack,
}

impl TableTime {
    /// Moves to this timestamp.
    #[inline]
    pub fn go_to(&mut self, stamp_ns: u64) -> Moved {
        if let Some(ahead_ns) = stamp_ns.checked_sub(self.stamp_ns)
            && ahead_ns <= CLOCK_AHEAD_MAX.as_nanos() as u64
            && self.started
        {
            self.stamp_ns = stamp_ns;
            // Saturates after five million steps back with an hour ahead after each: time then stands still.
            self.elapsed_ns = self.elapsed_ns.saturating_add(ahead_ns);
            return Moved::On;
        }
        self.go_elsewhere(stamp_ns)
    }

    #[inline(never)]
    fn go_elsewhere(&mut self, stamp_ns: u64) -> Moved {
        if self.started && stamp_ns <= self.stamp_ns {
            if self.stamp_ns - stamp_ns <= CLOCK_BACK_MAX.as_nanos() as u64 {
                return Moved::On; // out of order
            }
            self.stamp_ns = stamp_ns;
            return Moved::SteppedBack;
        }
        self.stamp_ns = stamp_ns;
        if std::mem::replace(&mut self.started, true) { Moved::SteppedAhead } else { Moved::On }
    }
}

/// A counter of the ticks of a time-out. A time-out has 64 ticks, so that the age of a flow fits in one byte.
#[derive(Debug)]
pub struct Ticks {
    /// Length of a tick; `u64::MAX` if there is no time-out.
    tick_ns: u64,
    /// Ticks so far.
    pub count: u64,
    next_ns: u64,
}

/// Ticks after which a flow has ended: 64 whole ticks, and the tick in which its last frame came.
pub const OVER_TICKS: u8 = 65;

impl Ticks {
    /// Creates the ticks of a time-out; `None`: a time-out that never expires.
    pub fn of(timeout: Option<Duration>) -> Ticks {
        let tick_ns = timeout.map_or(u64::MAX, |timeout| (timeout.as_nanos() as u64 / 64).max(1));
        Ticks { tick_ns, count: 0, next_ns: tick_ns }
    }

    /// Returns the lowest byte of the count.
    #[inline]
    pub fn byte(&self) -> u8 {
        self.count as u8
    }

    /// Returns the time at which the next tick passes.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Moves to this time, and returns the number of ticks that have passed.
    #[inline]
    pub fn go_to(&mut self, elapsed_ns: u64) -> u64 {
        if elapsed_ns < self.next_ns { 0 } else { self.pass(elapsed_ns) }
    }

    #[inline(never)]
    fn pass(&mut self, elapsed_ns: u64) -> u64 {
        let count = elapsed_ns / self.tick_ns;
        self.next_ns = (count + 1).saturating_mul(self.tick_ns);
        count - std::mem::replace(&mut self.count, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_no_time() {
        let hour = CLOCK_AHEAD_MAX.as_nanos() as u64;
        let mut time = TableTime::default();
        let steps = [
            (5 * hour, Moved::On, 0),
            (5 * hour + 9, Moved::On, 9),
            (5 * hour + 3, Moved::On, 9),
            (6 * hour + 9, Moved::On, hour + 9),
            (u64::MAX, Moved::SteppedAhead, hour + 9),
            (0, Moved::SteppedBack, hour + 9),
            (2, Moved::On, hour + 11),
        ];
        for (stamp, moved, elapsed) in steps {
            assert_eq!((time.go_to(stamp), time.elapsed_ns), (moved, elapsed), "{stamp}");
        }
    }

    #[test]
    fn ticks_pass_once() {
        let mut ticks = Ticks::of(Some(Duration::from_nanos(640)));
        assert_eq!([9, 10, 19, 20, 100, 100].map(|ns| ticks.go_to(ns)), [0, 1, 0, 1, 8, 0]);
        assert_eq!((ticks.byte(), Ticks::of(None).go_to(u64::MAX - 1)), (10, 0));
    }
}
