//! The sending loop: asks the bucket, sends, and stops in time.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::bucket::{Bucket, GRANT_MAX, Verdict};
use super::{GenOptions, Rate};
use crate::Result;

/// An engine that sends the next frames.
pub(super) trait Wire {
    /// Tries the next `frames` frames (above zero, at most [`GRANT_MAX`]) and says how many it
    /// tried: fewer only if it was interrupted.
    fn send(&mut self, frames: u32) -> Result<u64>;

    /// Whether the link is still there; asked about once a second.
    fn check(&mut self) -> Result<()>;
}

/// What the loop did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paced {
    pub(super) attempted: u64,
    pub(super) duration: Duration,
}

/// Below this a sleep could come back too late: the kernel's timer slack alone is 50 us.
const SPIN_NS: u64 = 80_000;
/// Longest sleep, so that the stop flag is seen.
const SLEEP_MAX_NS: u64 = 5_000_000;

/// Sends until duration, number of frames or `stop` says to end.
pub(super) fn run(wire: &mut impl Wire, options: &GenOptions, stop: &AtomicBool) -> Result<Paced> {
    let start = Instant::now();
    let now_ns = || start.elapsed().as_nanos() as u64;
    let frames_max = options.frames.unwrap_or(u64::MAX);
    let end_ns = options.duration.map_or(u64::MAX, |d| d.as_nanos().min(u64::MAX.into()) as u64);
    let bits = f64::from(options.size_on_wire) * 8.0;
    let mut bucket = match options.rate {
        Rate::Max => None,
        Rate::Pps(rate) => Some(Bucket::new(rate, 0)),
        Rate::Bps(rate) => Some(Bucket::new(rate / bits, 0)),
    };
    let (mut attempted, mut check_at_ns) = (0, 1_000_000_000);
    while attempted < frames_max && !stop.load(Relaxed) {
        let now = now_ns();
        if now >= end_ns {
            break;
        }
        if now >= check_at_ns {
            wire.check()?;
            check_at_ns = now + 1_000_000_000;
        }
        let left = frames_max - attempted;
        match bucket.as_mut().map_or(Verdict::Send(left.min(GRANT_MAX)), |b| b.ask(now, left)) {
            Verdict::Send(frames) => {
                let tried = wire.send(frames as u32)?;
                attempted += tried;
                if let Some(bucket) = &mut bucket {
                    bucket.give_back(frames - tried);
                }
            }
            Verdict::WaitNs(ns) => wait(ns.min(end_ns - now)),
        }
    }
    Ok(Paced { attempted, duration: start.elapsed() })
}

/// Waits, precisely if it is short, else a little less than told: the caller asks again.
fn wait(ns: u64) {
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

    #[derive(Default)]
    struct Fake {
        sent: u64,
        calls: u64,
    }

    impl Wire for Fake {
        fn send(&mut self, frames: u32) -> Result<u64> {
            assert!((1..=GRANT_MAX).contains(&u64::from(frames)));
            self.calls += 1;
            // An interrupted call tries fewer.
            let tried = u64::from(frames).div_ceil(2);
            self.sent += tried;
            Ok(tried)
        }

        fn check(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_number_of_frames_is_exact_though_calls_are_interrupted() {
        for frames in [0, 1, 63, 1_000_003] {
            let options = GenOptions { frames: Some(frames), ..GenOptions::default() };
            let mut wire = Fake::default();
            let paced = run(&mut wire, &options, &AtomicBool::new(false)).unwrap();
            assert_eq!((paced.attempted, wire.sent), (frames, frames));
        }
    }

    #[test]
    fn time_and_the_stop_flag_end_it() {
        let rate = Rate::Pps(1.0);
        let duration = Some(Duration::from_millis(20));
        let options = GenOptions { rate, duration, ..GenOptions::default() };
        let paced = run(&mut Fake::default(), &options, &AtomicBool::new(false)).unwrap();
        assert_eq!(paced.attempted, 1);
        assert!(paced.duration >= Duration::from_millis(20));
        let options = GenOptions { duration: None, ..options };
        let paced = run(&mut Fake::default(), &options, &AtomicBool::new(true)).unwrap();
        assert_eq!(paced.attempted, 0);
    }
}
