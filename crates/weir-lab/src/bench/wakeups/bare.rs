//! Measures the time that the machine takes to wake a sleeping thread. It is part of a single frame's delay in every
//! capture.

use std::sync::mpsc::channel;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::super::context::{Context, stopped};
use super::super::percentiles::Percentiles;
use crate::generator::affinity::Pinned;
use crate::{Error, Result};

/// Wakes a thread that sleeps on the tool's CPU, `times` times, from a thread on the generator's CPU. Each delay is
/// measured from just before the waking call until the woken thread reads the clock.
///
/// # Errors
/// [`Error::Cpu`], or [`Error::Measure`] if the run was stopped before the first wake-up.
pub(super) fn wake_ups(context: &Context, times: u64, every: Duration) -> Result<Percentiles> {
    let (wake, woken) = channel::<Instant>();
    let delays = thread::scope(|scope| {
        let sleeper = scope.spawn(move || -> Result<Vec<Duration>> {
            let _pinned = Pinned::to(context.cpus.tool)?;
            Ok(woken.into_iter().map(|at| at.elapsed()).collect())
        });
        let waker = scope.spawn(move || -> Result<()> {
            let _pinned = Pinned::to(context.cpus.generator)?;
            for _ in 0..times {
                if stopped(context.stop) || wake.send(Instant::now()).is_err() {
                    break;
                }
                sleep(every);
            }
            Ok(())
        });
        waker.join().expect("it does not panic")?;
        sleeper.join().expect("it does not panic")
    })?;
    of(delays).ok_or_else(|| Error::Measure {
        what: "a thread that only sleeps".to_owned(),
        reason: "it was stopped before it was woken".to_owned(),
    })
}

fn of(mut delays: Vec<Duration>) -> Option<Percentiles> {
    delays.sort_unstable();
    let last = delays.len().checked_sub(1)?;
    let at = |share: f64| delays[(last as f64 * share).round() as usize].as_secs_f64() * 1e6;
    Some(Percentiles {
        frames: delays.len() as u64,
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: at(1.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_sorted_delays() {
        let found = of((1..=101).rev().map(Duration::from_micros).collect()).unwrap();
        let us = found.all_us().map(|us| us.round());
        assert_eq!((found.frames, us), (101, [51.0, 91.0, 100.0, 101.0, 101.0]));
        assert_eq!(of(Vec::new()), None);
    }
}
