//! Many runs, on all CPUs.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::{Counts, Failure, events_of, play};

/// Plays `events` events of each of these seeds, with one thread for each CPU. Calls `ended` with the result of each
/// run, in the order of the seeds, until it returns `Break`.
pub fn play_many(
    seeds: RangeInclusive<u64>,
    events: usize,
    mut ended: impl FnMut(u64, Result<Counts, Failure>) -> ControlFlow<()>,
) {
    let stops = AtomicBool::new(false);
    let (to_play, mut wanted) = (Mutex::new(seeds.clone()), seeds.peekable());
    let next = || to_play.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (send, results) = channel();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            let (send, next, stops) = (send.clone(), &next, &stops);
            scope.spawn(move || {
                while !stops.load(Ordering::Relaxed)
                    && let Some(seed) = next()
                    && send.send((seed, play(&events_of(seed, events), None))).is_ok()
                {
                }
            });
        }
        drop(send);
        let mut early = BTreeMap::new();
        for (seed, result) in results {
            early.insert(seed, result);
            while let Some(&seed) = wanted.peek()
                && let Some(result) = early.remove(&seed)
            {
                wanted.next();
                if ended(seed, result).is_break() {
                    stops.store(true, Ordering::Relaxed);
                    return;
                }
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
        let mut last = Vec::new();
        play_many(u64::MAX - 2..=u64::MAX, 50, |seed, _| {
            last.push(seed);
            ControlFlow::Continue(())
        });
        assert_eq!(last, [u64::MAX - 2, u64::MAX - 1, u64::MAX]);
        play_many(RangeInclusive::new(5, 4), 50, |seed, _| panic!("{seed} is no seed of none"));
    }
}
