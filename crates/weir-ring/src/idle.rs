//! Idle strategy for a reader that finds no frames. All consumers that wait for frames use it.
//!
//! Each wake-up by a timer costs the machine some 30 us of CPU time, and disturbs the traffic that is measured. Each
//! time that a reader looks at a ring, it takes a cache line away from the writer. So while frames come,
//! [`IdleStrategy`] pauses for as long as the rings allow. It aims for a ring that has 8 MiB of frames, or is a fifth
//! full, when the pause ends, but pauses at most 9.5 ms. It estimates the rate of frames by the highest rate of the
//! last pauses. When no more frames come, it returns [`Wait::Sleep`]: the reader sleeps until a writer wakes it
//! ([`wake`](crate::wake)).
//!
//! A single frame now and then wakes the reader, which then sleeps again. Pauses begin only with a second frame within
//! 9.5 ms. So there are never many more than 105 wake-ups a second, whatever the traffic, unless a ring fills sooner.
//!
//! A reader that may read frames late, such as one that writes a file, pauses for up to 100 ms if a writer ends the
//! pause when a ring fills ([`IdleStrategy::long_pause`]).
//!
//! The strategy is only arithmetic: it has no thread and reads no clock. The caller reports the result of the last
//! wait.
//!
//! A reader that polls all the time, because it must be fast to a microsecond, spins after a poll that found nothing
//! ([`Spin`]), and stays a little behind the writer ([`DISTANCE_BYTES`]):
//!
//! ```no_run
//! # fn read(mut reader: weir_ring::Reader<weir_ring::Mapping>) -> Result<(), weir_ring::RingError> {
//! use weir_ring::idle::{DISTANCE_BYTES, Spin};
//! use weir_ring::{Batch, Poll};
//! let (mut batch, mut spin) = (Batch::new(), Spin::new());
//! reader.keep_distance(DISTANCE_BYTES);
//! loop {
//!     match reader.poll(&mut batch)? {
//!         Poll::Frames(_) => spin.reset(), // and do something with the batch
//!         Poll::Lapped(missed) => eprintln!("{missed} frames missed"),
//!         Poll::Empty => spin.wait(),
//!         Poll::Closed => return Ok(()),
//!     }
//! }
//! # }
//! ```

use std::time::{Duration, Instant};

/// How full the fullest ring should be when a pause ends. The rest of the ring is for a reader that is scheduled late,
/// and for a writer that becomes faster.
const AIM: f64 = 0.2;
/// Most bytes that the fullest ring should have when a pause ends: they are still in a third-level cache. A reader that
/// must fetch all frames from memory may never catch up with a writer that is as fast as the memory.
const AIM_BYTES_MAX: u64 = 8 << 20;
/// The shortest pause: the kernel's timers are not more precise.
const PAUSE_MIN: Duration = Duration::from_micros(50);
/// The longest pause: 105 wake-ups a second. A frame that is held until other rings were read (two pauses, when frames
/// come at a high rate) is still delivered within 20 ms.
const PAUSE_MAX: Duration = Duration::from_micros(9_500);
/// The highest rate that a link can reach from one pause to the next, from which the length of pauses is computed: 10
/// Gbit/s. A burst of this rate fills three quarters of the ring in the longest pause. Frames that are generated in
/// memory come eight times as fast: they fill half of a ring in the first pause after a sleep.
const BURST_BYTES_PER_S: u64 = 1_250_000_000;
/// A pause is at most this many times as long as the one before.
const GROWTH: u32 = 4;
/// How many bytes make a measurement. Fill is counted in whole blocks of 1 MiB: one block in a short pause says little
/// about the rate, and must not raise the highest rate; four blocks do.
const MEASURED_BYTES_MIN: u64 = 4 << 20;
/// Half-life of the highest rate. A writer that is delayed for some milliseconds continues as fast as before.
const RATE_HALVES_IN: Duration = Duration::from_millis(20);
/// Time without a frame, over several pauses, after which the reader sleeps. If it were shorter, frames that come a
/// little more often than the longest pauses end would find the reader asleep each time, and each frame would cost
/// several wake-ups.
const SILENCE: Duration = PAUSE_MAX;

/// The longest pause, if a filling ring ends it: 10 wake-ups a second.
const LONG_PAUSE: Duration = Duration::from_millis(100);
/// Pauses of [`LONG_PAUSE`] begin when frames have come for this long at so low a rate that such a pause does not fill
/// a ring to the aim.
const SLOW_AFTER: Duration = Duration::from_millis(250);

pub use crate::limits::SLEEP_MAX;

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For this time.
    Pause(Duration),
    /// Until the next frame in any ring.
    Sleep,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    /// How long the wait took.
    pub lasted: Duration,
    /// Whether any frame was written during the wait.
    pub came: bool,
    /// How much fuller the fullest ring became ([`Reader::fill`](crate::Reader::fill)).
    pub fill: f64,
}

/// Decides how long a reader waits after it has read all frames.
#[derive(Clone, Debug)]
pub struct IdleStrategy {
    /// The first pause after a sleep, when the rate of frames is not yet known; and the longest pause.
    pause_first: Duration,
    pause_max: Duration,
    /// How full the fullest ring should be when a pause ends.
    aim: f64,
    /// Lowest fill from which a rate is measured ([`MEASURED_BYTES_MIN`]).
    measured: f64,
    last: Wait,
    /// Time since the last frame.
    quiet: Duration,
    /// Rings filled in a second: the highest rate that was measured recently. It decays ([`RATE_HALVES_IN`]).
    highest_rate: f64,
    /// Rings filled in a second, during the last wait.
    last_rate: f64,
    /// Length of the consecutive pauses in which frames came but did not fill a ring to the aim; and the sum of their
    /// fills.
    slow_for: Duration,
    slow_fill: f64,
}

impl IdleStrategy {
    /// Creates a strategy for rings of which the smallest has `ring_bytes`. It begins as after a sleep.
    #[must_use]
    pub fn new(ring_bytes: u64) -> Self {
        let mut strategy = IdleStrategy {
            pause_first: PAUSE_MIN,
            pause_max: PAUSE_MAX,
            aim: AIM,
            measured: 1.0,
            last: Wait::Sleep,
            quiet: Duration::ZERO,
            highest_rate: 0.0,
            last_rate: 0.0,
            slow_for: Duration::ZERO,
            slow_fill: 0.0,
        };
        strategy.set_ring_bytes(ring_bytes);
        strategy
    }

    /// Sets the size of the smallest ring, after rings have joined or left.
    pub fn set_ring_bytes(&mut self, ring_bytes: u64) {
        let filled = Duration::from_secs_f64(ring_bytes as f64 / BURST_BYTES_PER_S as f64);
        self.pause_first = (filled / 16).clamp(PAUSE_MIN, PAUSE_MAX);
        self.pause_max = (filled * 3 / 4).clamp(PAUSE_MIN, PAUSE_MAX);
        self.aim = AIM.min(AIM_BYTES_MAX as f64 / ring_bytes as f64);
        self.measured = MEASURED_BYTES_MIN as f64 / ring_bytes as f64;
    }

    /// Returns how to wait after all frames were read. `waited` is the result of the last wait; before the first wait,
    /// a result without frames.
    pub fn next(&mut self, waited: Waited) -> Wait {
        let quiet = self.note(waited);
        self.last = match self.last {
            Wait::Sleep if !waited.came => Wait::Sleep,
            // Single frames come, rarely: each of them may wake the reader.
            Wait::Sleep if quiet >= PAUSE_MAX => Wait::Sleep,
            Wait::Sleep => Wait::Pause(self.aimed_below(self.pause_first)),
            Wait::Pause(_) if !waited.came && quiet >= SILENCE => Wait::Sleep,
            Wait::Pause(pause) => Wait::Pause(self.after(pause)),
        };
        self.last
    }

    /// Returns how long to pause while the caller holds frames that it must not deliver before `due` has passed. Never
    /// a sleep.
    pub fn next_held(&mut self, waited: Waited, due: Duration) -> Duration {
        self.note(waited);
        let pause = match self.last {
            Wait::Sleep => self.aimed_below(self.pause_first).min(due),
            Wait::Pause(pause) if waited.came => self.after(pause),
            // No frame came: wait until the held frames may be delivered.
            Wait::Pause(_) => due,
        };
        let pause = pause.clamp(PAUSE_MIN, self.pause_max);
        self.last = Wait::Pause(pause);
        pause
    }

    /// Returns a longer pause that may replace the one that was just returned. It is for a reader that may read frames
    /// late, and only if a writer ends the pause when a quarter of a ring was filled
    /// ([`Sleeper::wait_for_quarter`](crate::wake::Sleeper::wait_for_quarter)).
    #[must_use]
    pub fn long_pause(&self) -> Option<Duration> {
        (self.slow_for >= SLOW_AFTER).then_some(LONG_PAUSE)
    }

    /// Returns how much a ring would fill in a [`LONG_PAUSE`] at the rate of the slow pauses so far.
    fn expected_fill(&self) -> f64 {
        self.slow_fill * LONG_PAUSE.as_secs_f64() / self.slow_for.as_secs_f64()
    }

    /// Records the result of a wait. Returns how much time has passed, at the end of the wait, since the last frame
    /// before the wait.
    fn note(&mut self, waited: Waited) -> Duration {
        let quiet = self.quiet.saturating_add(waited.lasted);
        self.quiet = if waited.came { Duration::ZERO } else { quiet };
        let lasted = waited.lasted.as_secs_f64();
        self.last_rate = if lasted > 0.0 { waited.fill / lasted } else { 0.0 };
        self.highest_rate *= (-lasted / RATE_HALVES_IN.as_secs_f64()).exp2();
        if waited.fill >= self.measured {
            self.highest_rate = self.highest_rate.max(self.last_rate);
        }
        let is_slow = matches!(self.last, Wait::Pause(_)) && waited.came && waited.fill < self.aim;
        (self.slow_for, self.slow_fill) = match is_slow {
            true => (self.slow_for + waited.lasted, self.slow_fill + waited.fill),
            false => (Duration::ZERO, 0.0),
        };
        if self.slow_for >= SLOW_AFTER && self.expected_fill() > self.aim {
            (self.slow_for, self.slow_fill) = (Duration::ZERO, 0.0);
        }
        quiet
    }

    /// Returns the pause that follows `pause`.
    fn after(&self, pause: Duration) -> Duration {
        self.aimed_below((pause * GROWTH).clamp(PAUSE_MIN, self.pause_max))
    }

    /// Returns the time in which the fullest ring fills to the aim, limited to `most`.
    fn aimed_below(&self, most: Duration) -> Duration {
        let aimed = self.aim / self.highest_rate.max(self.last_rate).max(f64::MIN_POSITIVE);
        Duration::try_from_secs_f64(aimed).map_or(most, |aimed| aimed.clamp(PAUSE_MIN, most))
    }
}

/// Distance in bytes at which a polling reader does not disturb the writer: 16 KiB, or 180 minimum frames. Found by
/// experiment; 8 KiB was not always enough.
pub const DISTANCE_BYTES: u32 = 16 * 1024;

/// First and longest wait of a polling reader. At 10 Gbit/s and minimum frames, 300 frames come in 20 us. A system call
/// and a wake-up would take much longer.
const SPIN_MIN: Duration = Duration::from_micros(20);
const SPIN_MAX: Duration = Duration::from_micros(50);

/// Decides how long a polling reader spins after [`Poll::Empty`](crate::Poll::Empty).
///
/// The index entry of the open block is in a cache line to which the writer stores with every burst. Each time that a
/// reader loads the entry, it takes the line away from the writer, which must fetch the line back. The lines that the
/// reader's processor prefetches have the same effect, and are more.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    next: Duration,
}

impl Default for Spin {
    fn default() -> Self {
        Spin::new()
    }
}

impl Spin {
    /// Creates a value whose first wait is the shortest.
    #[must_use]
    pub fn new() -> Self {
        Spin { next: SPIN_MIN }
    }

    /// Spins for 20 us, and longer when called again without [`reset`](Spin::reset), up to 50 us. Does not yield the
    /// CPU.
    pub fn wait(&mut self) {
        let begin = Instant::now();
        while begin.elapsed() < self.next {
            for _ in 0..16 {
                std::hint::spin_loop();
            }
        }
        self.next = (self.next + self.next / 2).min(SPIN_MAX);
    }

    /// Makes the next wait a short one. Called when frames were found.
    pub fn reset(&mut self) {
        self.next = SPIN_MIN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link: how many frames it has brought by a time in seconds, and how much of a ring a frame fills.
    struct Link<F> {
        frames: F,
        share: f64,
    }

    /// Lets a strategy read a link for some seconds. Says how often it woke, how full the ring was at most.
    fn run(link: Link<impl Fn(f64) -> u64>, seconds: f64) -> (u64, f64) {
        let (mut strategy, mut now, mut read) = (IdleStrategy::new(32 << 20), 0.0, 0);
        let (mut wakes, mut fullest) = (0, 0.0f64);
        let mut waited = Waited { lasted: Duration::ZERO, came: false, fill: 0.0 };
        while now < seconds {
            let begin = now;
            match strategy.next(waited) {
                Wait::Pause(pause) => now += pause.as_secs_f64(),
                // 10 us are the link's resolution; no sleep ends before a frame.
                Wait::Sleep => {
                    while now < seconds && (link.frames)(now) == read {
                        now += 1e-5;
                    }
                }
            }
            wakes += 1;
            let there = (link.frames)(now);
            let fill = (there - read) as f64 * link.share;
            waited =
                Waited { lasted: Duration::from_secs_f64(now - begin), came: there > read, fill };
            (read, fullest) = (there, fullest.max(fill));
        }
        (wakes, fullest)
    }

    fn steady(rate: f64) -> impl Fn(f64) -> u64 {
        move |now| (now * rate) as u64
    }

    #[test]
    fn at_no_rate_does_it_wake_much_more_than_a_hundred_times_a_second() {
        for rate in [1.0, 10.0, 30.0, 60.0, 67.0, 90.0, 100.0, 110.0, 150.0, 300.0, 1000.0, 1e5] {
            let (wakes, _) = run(Link { frames: steady(rate), share: 1e-9 }, 10.0);
            assert!(wakes <= 1100, "{rate} frames a second: {wakes} wakes in 10 s");
        }
    }

    #[test]
    fn a_ring_that_fills_is_read_when_a_fifth_of_it_is_full() {
        // 32 MiB full in 4, 10, 20 ms: 8.4, 3.4 and 1.7 GB/s.
        for full_s in [4e-3, 10e-3, 20e-3] {
            let (wakes, fullest) = run(Link { frames: steady(1e6), share: 1e-6 / full_s }, 1.0);
            assert!(fullest < 0.55, "{full_s}: {fullest}");
            let wanted = 1.0 / (AIM * full_s);
            assert!(wakes as f64 <= 1.1 * wanted.max(105.0) + 10.0, "{full_s}: {wakes} wakes");
        }
    }

    #[test]
    fn silence_is_slept_through_and_a_frame_in_it_waits_for_no_timer() {
        let (wakes, _) = run(Link { frames: |now| u64::from(now > 30.0), share: 1e-9 }, 60.0);
        assert!(wakes <= 6, "{wakes} wakes for one frame in a minute");
    }

    fn came(ms: u64, fill: f64) -> Waited {
        Waited { lasted: Duration::from_millis(ms), came: true, fill }
    }

    fn nothing(ms: u64) -> Waited {
        Waited { lasted: Duration::from_millis(ms), came: false, fill: 0.0 }
    }

    #[test]
    fn pauses_begin_with_the_second_frame_and_end_in_a_sleep() {
        let mut strategy = IdleStrategy::new(4 << 20);
        assert_eq!(strategy.next(nothing(0)), Wait::Sleep);
        assert_eq!(strategy.next(nothing(8)), Wait::Sleep);
        // The first frame in a long time, and another at once.
        assert_eq!(strategy.next(came(3, 0.0)), Wait::Sleep);
        let Wait::Pause(first) = strategy.next(came(1, 0.0)) else { panic!("it sleeps") };
        assert!(first < Duration::from_millis(1), "{first:?}: a small ring fills in 3.4 ms");
        assert_eq!(
            strategy.next(came(1, 0.0)),
            Wait::Pause(strategy.pause_max.min(first * GROWTH))
        );
        assert_eq!(strategy.next(came(2, AIM)), Wait::Pause(Duration::from_millis(2)));
        assert_eq!(strategy.next(came(1, AIM)), Wait::Pause(Duration::from_millis(1)));
        assert!(matches!(strategy.next(nothing(3)), Wait::Pause(_)));
        assert_eq!(strategy.next(nothing(8)), Wait::Sleep);
    }

    #[test]
    fn a_writer_that_was_held_up_finds_the_reader_as_quick_as_before() {
        let mut strategy = IdleStrategy::new(32 << 20);
        strategy.next(came(1, 0.0));
        for _ in 0..4 {
            strategy.next(came(1, AIM));
        }
        let Wait::Pause(behind) = strategy.next(came(4, 0.0)) else { panic!("it sleeps") };
        assert!(behind < Duration::from_micros(1200), "{behind:?}");
        // But a burst is forgotten.
        let pauses = (0..40).map(|_| strategy.next(came(4, 0.0)));
        assert_eq!(pauses.last(), Some(Wait::Pause(PAUSE_MAX)));
    }

    /// Only whole blocks are counted, and of a small ring one is a lot: pauses must not become short for good.
    #[test]
    fn a_block_more_in_a_small_ring_is_no_burst() {
        for (ring_mib, bytes_per_s) in [(4, 200e6), (4, 400e6), (8, 400e6), (64, 400e6), (256, 1e9)]
        {
            let mut strategy = IdleStrategy::new(ring_mib << 20);
            let (mut now, mut blocks, mut wakes) = (0.0, 0, 0);
            let mut waited = came(1, 0.0);
            while now < 2.0 {
                let Wait::Pause(pause) = strategy.next(waited) else { panic!("it sleeps") };
                // The kernel's timers add some 60 us.
                let lasted = pause + Duration::from_micros(60);
                now += lasted.as_secs_f64();
                wakes += 1;
                let newest = (now * bytes_per_s / f64::from(1 << 20)) as u64;
                let fill = (newest - blocks) as f64 / ring_mib as f64;
                (waited, blocks) = (Waited { lasted, came: true, fill }, newest);
            }
            let filled_hz = bytes_per_s / (ring_mib << 20) as f64;
            let wanted = (filled_hz / AIM).max(105.0);
            assert!(
                f64::from(wakes) < 2.0 * 2.0 * wanted,
                "{ring_mib} MiB, {bytes_per_s}: {wakes}"
            );
        }
    }

    #[test]
    fn of_a_large_ring_no_more_is_left_to_fill_than_a_cache_holds() {
        let mut strategy = IdleStrategy::new(256 << 20);
        strategy.next(came(1, 0.0));
        // 32 MiB in 4 ms: 8 MiB in one.
        strategy.next(came(4, 0.125));
        assert_eq!(strategy.next(came(1, 0.03125)), Wait::Pause(Duration::from_millis(1)));
    }

    #[test]
    fn the_first_pause_is_shorter_where_a_ring_fills_at_once() {
        let mut strategy = IdleStrategy::new(32 << 20);
        assert_eq!(strategy.next(came(1, AIM)), Wait::Pause(Duration::from_millis(1)));
    }

    #[test]
    fn pauses_are_long_after_a_while_of_few_frames_until_many_or_none_come() {
        let few = || came(9, 0.001);
        let slow = || {
            let mut strategy = IdleStrategy::new(32 << 20);
            // The end of a sleep does not count, however long it was.
            strategy.next(came(900, 0.0));
            strategy.next(came(1, 0.0));
            assert_eq!(strategy.long_pause(), None);
            for _ in 0..27 {
                strategy.next(few());
                assert_eq!(strategy.long_pause(), None);
            }
            strategy.next(few());
            strategy
        };
        let mut strategy = slow();
        assert_eq!(strategy.long_pause(), Some(LONG_PAUSE));
        strategy.next(came(100, 0.01));
        assert_eq!(strategy.long_pause(), Some(LONG_PAUSE));
        // A quarter of a ring in 2 ms, which has ended the pause.
        let Wait::Pause(pause) = strategy.next(came(2, 0.25)) else { panic!("it sleeps") };
        assert!(pause < Duration::from_millis(2) && strategy.long_pause().is_none(), "{pause:?}");
        // A rate at which such a pause would fill more than the aim: of 32 blocks one in each pause. One in each third
        // pause is less.
        let mut strategy = IdleStrategy::new(32 << 20);
        for _ in 0..40 {
            strategy.next(came(9, 1.0 / 32.0));
        }
        assert_eq!(strategy.long_pause(), None);
        // What was faster before is forgotten.
        for pause in 0..60 {
            strategy.next(came(9, if pause % 3 == 0 { 1.0 / 32.0 } else { 0.0 }));
        }
        assert_eq!(strategy.long_pause(), Some(LONG_PAUSE));
        let mut strategy = slow();
        assert_eq!(strategy.next(nothing(100)), Wait::Sleep);
        assert_eq!(strategy.long_pause(), None);
        let mut strategy = slow();
        strategy.next_held(few(), Duration::from_millis(8));
        assert_eq!(strategy.long_pause(), Some(LONG_PAUSE));
    }

    #[test]
    fn frames_that_are_held_are_passed_on_when_they_are_due() {
        let mut strategy = IdleStrategy::new(64 << 20);
        let due = Duration::from_millis(8);
        // A single frame after silence: a look for more, and a wake-up when it is due.
        let first = strategy.next_held(came(500, 0.0), due);
        assert!(first < due);
        assert_eq!(strategy.next_held(nothing(3), due - first), due - first);
        assert_eq!(strategy.next(nothing(4)), Wait::Pause(PAUSE_MAX));
        assert_eq!(strategy.next(nothing(9)), Wait::Sleep);
        // Many: as long as the ring allows, and no sleep before the last is out.
        assert_eq!(strategy.next_held(came(1, 0.0), due), first);
        assert_eq!(strategy.next_held(came(3, 0.0), due), PAUSE_MAX);
        assert!(strategy.next_held(came(9, 0.8), due) < PAUSE_MAX / 3);
        assert_eq!(strategy.next_held(nothing(3), Duration::ZERO), PAUSE_MIN);
        assert_eq!(strategy.next_held(nothing(900), due), due);
    }

    #[test]
    fn spins_grow_to_the_longest_and_begin_anew() {
        let mut spin = Spin::new();
        let begin = Instant::now();
        for _ in 0..5 {
            spin.wait();
        }
        // 20 + 30 + 45 + 50 + 50 us, at least.
        assert!(begin.elapsed() >= Duration::from_micros(195));
        assert_eq!(spin.next, SPIN_MAX);
        spin.reset();
        assert_eq!(spin.next, SPIN_MIN);
    }
}
