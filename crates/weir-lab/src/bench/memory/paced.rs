//! Measures the CPU time of the writer at a fixed rate that its readers keep up with.

use std::hint::spin_loop;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use weir_ring::RingError;

use super::{BURST, Maker, Way, attach, new_ring, read, warm};
use crate::bench::context::Cpus;
use crate::generator::affinity::Pinned;

/// A fixed rate that readers keep up with.
const PACED_PPS: f64 = 5e6;
/// Frames of one timed burst: enough that the time of reading the clock is negligible.
const PACED_FRAMES: u64 = 256;
/// A burst that takes this long was interrupted by another program; it usually takes about 4 us.
const INTERRUPTED: Duration = Duration::from_micros(50);

/// Result of a measurement.
pub(super) struct Work {
    pub(super) ns_per_frame: f64,
    pub(super) lapped: u64,
    /// Number of interrupted bursts, which are left out.
    pub(super) interrupted: u64,
}

/// Measures the writer's time per 60-byte frame, at a rate at which it is idle most of the time.
pub(super) fn at_fixed_rate(cpus: Cpus, readers: usize, seconds: f64) -> Result<Work, RingError> {
    let mut maker = Maker::new(64, false);
    let mut writer = warm(new_ring()?, &mut maker);
    let first = writer.frames();
    let attached = (0..readers).map(|_| attach(writer.ring()));
    let attached = attached.collect::<Result<Vec<_>, RingError>>()?;
    thread::scope(|scope| {
        let threads = attached.into_iter().enumerate().map(|(index, reader)| {
            scope.spawn(move || read(reader, Way::Count, cpus.reader(index), &AtomicU64::new(0)))
        });
        let threads: Vec<_> = threads.collect();
        let _pinned = Pinned::to(cpus.generator);
        let (mut busy, mut counted, mut interrupted) = (Duration::ZERO, 0u64, 0);
        let begin = Instant::now();
        loop {
            let before = Instant::now();
            let elapsed = before.duration_since(begin).as_secs_f64();
            if elapsed >= seconds {
                break;
            }
            if (writer.frames() - first) as f64 > elapsed * PACED_PPS {
                spin_loop();
                continue;
            }
            for _ in 0..PACED_FRAMES / BURST {
                maker.burst(&mut writer);
            }
            let took = before.elapsed();
            if took < INTERRUPTED {
                (busy, counted) = (busy + took, counted + PACED_FRAMES);
            } else {
                interrupted += 1;
            }
        }
        drop(writer);
        let mut lapped = 0;
        for thread in threads {
            lapped += thread.join().expect("the reader does not panic")?.lapped;
        }
        let ns_per_frame = busy.as_nanos() as f64 / counted.max(1) as f64;
        Ok(Work { ns_per_frame, lapped, interrupted })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_with_and_without_readers() {
        let cpus = Cpus { generator: 0, tool: 0, all: 1 };
        for readers in [0, 4] {
            assert!(at_fixed_rate(cpus, readers, 0.02).unwrap().ns_per_frame > 0.0);
        }
    }
}
