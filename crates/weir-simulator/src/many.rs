//! Many runs, on all CPUs.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use crate::{Counts, Failure, events_of, play};

/// Plays so many events of each of these seeds, a thread a CPU, and says how each run ended, in the order of the seeds,
/// until it is told to stop.
pub fn play_many(
    seeds: RangeInclusive<u64>,
    events: usize,
    mut ended: impl FnMut(u64, Result<Counts, Failure>) -> ControlFlow<()>,
) {
    let (mut wanted, last) = (*seeds.start(), *seeds.end());
    let (next, stops) = (AtomicU64::new(wanted), AtomicBool::new(false));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let (send, results) = channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (send, next, stops) = (send.clone(), &next, &stops);
            scope.spawn(move || {
                while !stops.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > last
                        || send.send((seed, play(&events_of(seed, events), None))).is_err()
                    {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut early = BTreeMap::new();
        for (seed, result) in results {
            early.insert(seed, result);
            while let Some(result) = early.remove(&wanted) {
                if ended(wanted, result).is_break() {
                    stops.store(true, Ordering::Relaxed);
                    return;
                }
                wanted += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_in_the_order_of_their_seeds_and_stop_when_told() {
        let mut ended = Vec::new();
        play_many(3..=40, 50, |seed, result| {
            assert_eq!(result, play(&events_of(seed, 50), None));
            ended.push(seed);
            if seed == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(ended, (3..=20).collect::<Vec<_>>());
        play_many(RangeInclusive::new(5, 4), 50, |seed, _| panic!("{seed} is no seed of none"));
    }
}
