//! Time as frames tell it.
//!
//! A table's time only moves forward, and by no more than clocks that run may: a stamp that is far from the last one
//! moves the point from which time is counted instead, and is counted as a step.

use std::time::Duration;

use crate::limits::{CLOCK_AHEAD_MAX, CLOCK_BACK_MAX};

/// Nanoseconds since the first stamp, steps left out.
#[derive(Debug, Default)]
pub struct TableTime {
    started: bool,
    /// The latest stamp.
    stamp_ns: u64,
    /// The table's time at that stamp.
    pub elapsed_ns: u64,
}

/// A stamp's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Time is the same, or has moved on.
    On,
    /// A clock was set ahead.
    SteppedAhead,
    /// A clock was set back.
    SteppedBack,
}

impl TableTime {
    /// Goes to this stamp.
    #[inline]
    pub fn go_to(&mut self, stamp_ns: u64) -> Moved {
        if let Some(ahead_ns) = stamp_ns.checked_sub(self.stamp_ns)
            && ahead_ns <= CLOCK_AHEAD_MAX.as_nanos() as u64
            && self.started
        {
            self.stamp_ns = stamp_ns;
            // Five million steps back, each before an hour ahead, would come to the end: time then stands still.
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

/// Ticks of a time-out, 64 of them, so that the age of a flow is one byte.
#[derive(Debug)]
pub struct Ticks {
    /// Length of one; never, if there is no time-out.
    tick_ns: u64,
    /// Ticks so far.
    pub count: u64,
    next_ns: u64,
}

/// Ticks after which a flow has ended: 64 whole ones, and the one in which its last frame came.
pub const OVER_TICKS: u8 = 65;

impl Ticks {
    /// Of a time-out; `None`: of one that never ends.
    pub fn of(timeout: Option<Duration>) -> Ticks {
        let tick_ns = timeout.map_or(u64::MAX, |timeout| (timeout.as_nanos() as u64 / 64).max(1));
        Ticks { tick_ns, count: 0, next_ns: tick_ns }
    }

    /// The last byte of the count.
    #[inline]
    pub fn byte(&self) -> u8 {
        self.count as u8
    }

    /// When the next one passes.
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Goes to this time; the number of ticks that have passed.
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
