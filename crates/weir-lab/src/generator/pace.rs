//! The sending loop: threads get grants of frame numbers from a shared bucket, and stop in time.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::affinity::Pinned;
use super::bucket::{Bucket, GRANT_MAX, Verdict};
use super::{GenOptions, Rate};
use crate::Result;

/// An engine that sends frames; each thread has its own.
pub(super) trait Wire {
    /// Attempts the frames with numbers `first` to `first + frames - 1` in order; `frames` is 1 to [`GRANT_MAX`].
    /// Returns the number of attempted frames, which may be lower in the first call and after an interruption.
    fn send(&mut self, first: u64, frames: u32) -> Result<u64>;

    /// Checks that the link still exists. Called once a second.
    fn check(&mut self) -> Result<()>;
}

/// Result of the loop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paced {
    pub(super) attempted: u64,
    pub(super) duration: Duration,
    /// The time that corresponds to the given-up frames; see [`super::Totals::given_up`].
    pub(super) given_up: Duration,
}

/// Waits up to this time are busy waits, because a sleep could end too late: the kernel's timer slack alone is 50 us.
const SPIN_NS: u64 = 80_000;
/// Longest sleep, so that the stop flag is checked often enough.
const SLEEP_MAX_NS: u64 = 5_000_000;

/// Runs `worker` in the requested number of threads, one of which is the caller's, until the duration or the number of
/// frames is reached or `stop` is set. A worker creates its [`Wire`] and passes it to [`Turns::serve`].
///
/// # Errors
/// The first error of a worker. The others end after their current grant.
pub(super) fn run(
    options: &GenOptions,
    stop: &AtomicBool,
    worker: impl Fn(&Turns) -> Result<()> + Sync,
) -> Result<Paced> {
    let turns = Turns::new(options, stop);
    thread::scope(|scope| {
        for index in 1..turns.threads {
            let (turns, worker) = (&turns, &worker);
            scope.spawn(move || turns.work(index, worker));
        }
        turns.work(0, &worker);
    });
    let duration = Duration::from_nanos(turns.end_of_last_ns.load(Ordering::Acquire));
    let row = turns.row.into_inner().unwrap_or_else(PoisonError::into_inner);
    match turns.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => {
            let given_up = row.bucket.map_or(0, |bucket| bucket.given_up_ns());
            let given_up = Duration::from_nanos(given_up);
            Ok(Paced { attempted: row.granted, duration, given_up })
        }
    }
}

/// State that the threads share.
pub(super) struct Turns<'a> {
    stop: &'a AtomicBool,
    cpus: &'a [usize],
    threads: usize,
    first_number: u64,
    end_ns: u64,
    row: Mutex<Row>,
    /// Number of threads whose wire is ready. The clock starts when all are ready.
    ready: AtomicUsize,
    start: OnceLock<Instant>,
    /// Time at which the last thread left its sending loop: its last frame was sent, or the end was reached. The
    /// threads end later, because they then still unload their programs.
    end_of_last_ns: AtomicU64,
    /// Whether the first call of [`Wire::send`] has succeeded, or the thread that makes it has ended. The other threads
    /// wait for it.
    proven: AtomicBool,
    /// Whether a worker has failed, so that the others must end.
    aborted: AtomicBool,
    failed: Mutex<Option<crate::Error>>,
}

/// The frame numbers that are not granted yet. A thread attempts all numbers of its grant, so that there is no gap.
struct Row {
    bucket: Option<Bucket>,
    granted: u64,
    frames_max: u64,
}

/// Ends the other workers if this one panics.
struct AbortOnPanic<'a>(&'a AtomicBool);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

impl<'a> Turns<'a> {
    fn new(options: &'a GenOptions, stop: &'a AtomicBool) -> Turns<'a> {
        let bits = options.sizes.mean() * 8.0;
        let bucket = match options.rate {
            Rate::Max => None,
            Rate::Pps(rate) => Some(Bucket::new(rate, 0)),
            Rate::Bps(rate) => Some(Bucket::new(rate / bits, 0)),
        };
        let frames_max = options.frames.unwrap_or(u64::MAX);
        let end = |duration: Duration| duration.as_nanos().min(u128::from(u64::MAX)) as u64;
        Turns {
            stop,
            cpus: &options.cpus,
            threads: options.threads,
            first_number: options.first_number,
            end_ns: options.duration.map_or(u64::MAX, end),
            row: Mutex::new(Row { bucket, granted: 0, frames_max }),
            ready: AtomicUsize::new(0),
            start: OnceLock::new(),
            end_of_last_ns: AtomicU64::new(0),
            proven: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            failed: Mutex::new(None),
        }
    }

    fn work(&self, index: usize, worker: &impl Fn(&Turns) -> Result<()>) {
        // The others wait for a worker that has panicked, else.
        let _others = AbortOnPanic(&self.aborted);
        let pinned = self.cpus.get(index).copied().map(Pinned::to).transpose();
        if let Err(error) = pinned.and_then(|_pinned| worker(self)) {
            self.aborted.store(true, Ordering::Release);
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// Waits until all threads are ready, then serves grant after grant.
    ///
    /// # Errors
    /// Errors of the wire.
    pub(super) fn serve(&self, wire: &mut impl Wire) -> Result<()> {
        let place = self.ready.fetch_add(1, Ordering::AcqRel);
        self.sleep_until(|| self.ready.load(Ordering::Acquire) == self.threads);
        self.start.get_or_init(Instant::now);
        if place > 0 {
            // The first grant shows whether the interface accepts frames. The other threads wait for its result.
            self.sleep_until(|| self.proven.load(Ordering::Acquire));
        }
        let mut check_at_ns = 1_000_000_000;
        while !self.is_stopped() {
            let now = self.now_ns();
            if now >= self.end_ns {
                if let Some((first, frames)) = self.ask_last() {
                    self.turn(wire, first, frames)?;
                }
                break;
            }
            if now >= check_at_ns {
                wire.check()?;
                check_at_ns = now + 1_000_000_000;
            }
            match self.ask(now) {
                None => break,
                Some((first, Verdict::Send(frames))) => self.turn(wire, first, frames)?,
                Some((_, Verdict::WaitNs(ns))) => wait(ns.min(self.end_ns.saturating_sub(now))),
            }
        }
        self.end_of_last_ns.fetch_max(self.now_ns(), Ordering::AcqRel);
        // Even if this thread had no frame to send, the other threads must not wait forever.
        self.proven.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the next grant with its first number, or the time to wait for it. `None` if all frames are granted.
    fn ask(&self, now_ns: u64) -> Option<(u64, Verdict)> {
        let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
        let left = row.frames_max - row.granted;
        if left == 0 {
            return None;
        }
        let all = Verdict::Send(left.min(GRANT_MAX));
        let verdict = row.bucket.as_mut().map_or(all, |bucket| bucket.ask(now_ns, left));
        let first = self.first_number.wrapping_add(row.granted);
        if let Verdict::Send(frames) = verdict {
            row.granted += frames;
        }
        Some((first, verdict))
    }

    /// Returns first number and count of the frames that were due before the end but are not granted yet. The first
    /// thread that asks gets them.
    fn ask_last(&self) -> Option<(u64, u64)> {
        let mut row = self.row.lock().unwrap_or_else(PoisonError::into_inner);
        let left = row.frames_max - row.granted;
        if left == 0 {
            return None;
        }
        // A run with a duration of 0 has no frames.
        let bucket = row.bucket.as_mut().filter(|_| self.end_ns > 0)?;
        let frames = bucket.last(self.end_ns, left);
        let first = self.first_number.wrapping_add(row.granted);
        row.granted += frames;
        (frames > 0).then_some((first, frames))
    }

    /// Attempts all granted numbers. A number that is left out would be a gap.
    fn turn(&self, wire: &mut impl Wire, first: u64, frames: u64) -> Result<()> {
        let mut tried = 0;
        while tried < frames {
            tried += wire.send(first.wrapping_add(tried), (frames - tried) as u32)?;
            self.proven.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.aborted.load(Ordering::Acquire)
    }

    fn sleep_until(&self, is_so: impl Fn() -> bool) {
        while !is_so() && !self.aborted.load(Ordering::Acquire) {
            sleep(Duration::from_micros(200));
        }
    }

    fn elapsed(&self) -> Duration {
        self.start.get().map_or(Duration::ZERO, Instant::elapsed)
    }

    fn now_ns(&self) -> u64 {
        self.elapsed().as_nanos() as u64
    }
}

/// Waits exactly if the time is short; otherwise sleeps for less, at most [`SLEEP_MAX_NS`]. The caller asks again
/// afterwards.
pub(super) fn wait(ns: u64) {
    if ns > SPIN_NS {
        return sleep(Duration::from_nanos((ns - SPIN_NS).min(SLEEP_MAX_NS)));
    }
    let start = Instant::now();
    while (start.elapsed().as_nanos() as u64) < ns {
        spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    /// Records every call, and attempts only half of the frames, as if interrupted.
    struct Fake<'a>(&'a Mutex<Vec<(u64, u64)>>);

    impl Wire for Fake<'_> {
        fn send(&mut self, first: u64, frames: u32) -> Result<u64> {
            assert!((1..=GRANT_MAX).contains(&u64::from(frames)));
            let tried = u64::from(frames).div_ceil(2);
            self.0.lock().unwrap().push((first, tried));
            Ok(tried)
        }

        fn check(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn play(options: &GenOptions, stopped: bool) -> (Paced, Vec<(u64, u64)>) {
        let turns = Mutex::default();
        let stop = AtomicBool::new(stopped);
        let paced = run(options, &stop, |all| all.serve(&mut Fake(&turns))).unwrap();
        (paced, turns.into_inner().unwrap())
    }

    #[test]
    fn numbers_have_no_gap_and_no_double_whoever_sends_them() {
        for threads in [1, 2, 5] {
            for (frames, first_number) in [(0, 0), (1, 7), (63, 0), (1_000_003, 40)] {
                let frames_max = Some(frames);
                let options = GenOptions {
                    frames: frames_max,
                    first_number,
                    threads,
                    ..GenOptions::default()
                };
                let (paced, mut sent) = play(&options, false);
                sent.sort_unstable();
                let end = sent.iter().fold(first_number, |next, &(first, tried)| {
                    assert_eq!(first, next, "{threads} threads");
                    next + tried
                });
                assert_eq!((paced.attempted, end - first_number), (frames, frames));
            }
        }
    }

    #[test]
    fn threads_share_the_rate() {
        // 50 frames are due in 1 s, and the first at once: 11 take 200 ms. With a bucket for each thread, they would
        // take a third of that.
        let rate = Rate::Pps(50.0);
        let frames = Some(11);
        let options = GenOptions { rate, frames, threads: 3, ..GenOptions::default() };
        let (paced, _) = play(&options, false);
        assert_eq!(paced.attempted, 11);
        assert!(paced.duration >= Duration::from_millis(200), "{:?}", paced.duration);
    }

    #[test]
    fn time_and_the_stop_flag_end_it() {
        for threads in [1, 3] {
            let rate = Rate::Pps(1.0);
            let duration = Some(Duration::from_millis(20));
            let options = GenOptions { rate, duration, threads, ..GenOptions::default() };
            let (paced, _) = play(&options, false);
            assert_eq!(paced.attempted, 1);
            assert!(paced.duration >= Duration::from_millis(20));
            let options = GenOptions { duration: None, ..options };
            assert_eq!(play(&options, true).0.attempted, 0);
        }
    }

    #[test]
    fn a_run_of_some_time_has_the_frames_of_its_time_to_the_frame() {
        // Holds on a busy machine too, because the given-up time is reported.
        for threads in [1, 3] {
            let rate = Rate::Pps(20_000.0);
            let duration = Some(Duration::from_millis(100));
            let options = GenOptions { rate, duration, threads, ..GenOptions::default() };
            let (paced, _) = play(&options, false);
            let all = paced.attempted as f64 + paced.given_up.as_secs_f64() * 20_000.0;
            assert!((all - 2_000.0).abs() <= 1.0, "{paced:?}");
            let nothing = GenOptions { duration: Some(Duration::ZERO), ..options };
            assert_eq!(play(&nothing, false).0.attempted, 0);
        }
    }

    #[test]
    fn a_number_of_frames_that_was_sent_in_time_leaves_nothing_to_give_up() {
        let (rate, duration) = (Rate::Pps(20_000.0), Some(Duration::from_millis(100)));
        let options =
            GenOptions { rate, duration, frames: Some(1), threads: 2, ..GenOptions::default() };
        let stop = AtomicBool::new(false);
        let turns = Turns::new(&options, &stop);
        assert_eq!(turns.ask(0), Some((0, Verdict::Send(1))));
        // One thread asks in time. The other is delayed until the end, and finds nothing left.
        assert_eq!(turns.ask(50_000_000), None);
        assert_eq!(turns.ask_last(), None);
        let row = turns.row.into_inner().unwrap();
        assert_eq!(row.bucket.unwrap().given_up_ns(), 0);
        let (paced, _) = play(&options, false);
        assert_eq!((paced.attempted, paced.given_up), (1, Duration::ZERO));
    }

    #[test]
    fn one_worker_that_fails_ends_all() {
        let options = GenOptions { threads: 3, ..GenOptions::default() };
        let count = AtomicUsize::new(0);
        let turns = Mutex::default();
        // It fails before it is ready, while the others wait for it.
        let error = run(&options, &AtomicBool::new(false), |all| {
            if count.fetch_add(1, Ordering::Relaxed) == 1 {
                return Err(Error::Down { iface: "it".into() });
            }
            all.serve(&mut Fake(&turns))
        });
        assert!(matches!(error, Err(Error::Down { .. })));
    }
}
