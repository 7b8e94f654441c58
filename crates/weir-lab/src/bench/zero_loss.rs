//! The highest rate at which nothing is lost: throughput as RFC 2544, section 26.1, has it.
//!
//! The rate is halved between one that lost frames and one that lost none, and each trial is a run of its
//! own, against the generator's exact count. Where the RFC wants trials of 60 s, these are as long as
//! [`Options::trial`](super::Options::trial) says: a buffer hides a slow reader for as long as it fills.

use super::report::{Frames, MPPS, Row, conclude, lost};
use super::table::figure;
use super::tool::{TCPDUMP, Tool};
use super::wire::{self, Traffic};
use super::{Context, stopped};
use crate::generator::Rate;
use crate::testbed::Testbed;
use crate::{Error, Result};

pub(super) const SECTION: &str = "zero-loss";
const SIZES: [u32; 1] = [64];
const SIZES_FULL: [u32; 2] = wire::SIZES;
/// The search ends when the two rates are this near, as a share of the most that was offered.
pub(super) const RESOLUTION: f64 = 1.0 / 32.0;
/// A rate that lost frames is tried again: on a machine that others use, too, one loss may be theirs.
pub(super) const TRIES: u32 = 2;

/// Searches for every engine and peer.
///
/// # Errors
/// Only if there can be no testbed: a tool that fails is a row that says so.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    let bed = Testbed::builder().gro(true).build()?;
    let sizes: &[u32] = if context.options.full { &SIZES_FULL } else { &SIZES };
    for &size in sizes {
        let mut tools = Tool::weirs(&context.options.weir);
        tools.extend(Tool::peers());
        let mut rows: Vec<Row> =
            tools.iter().map(|tool| Row::new(SECTION, tool.name, MPPS).sized(size)).collect();
        for round in 0..context.searches {
            for (tool, row) in tools.iter().zip(&mut rows) {
                if stopped(context.stop) || row.absent.is_some() {
                    continue;
                }
                let neighbours = context.calm();
                let trial = |rate| {
                    let traffic = Traffic { size, rate, seconds: context.trial, stamp: false };
                    wire::one(context, &bed, tool, traffic)
                };
                match search(context, trial) {
                    Ok(found) => {
                        let mpps = found.best.kept_mpps();
                        context.say(&format!("zero-loss, {size} B: {} {mpps:.2}", tool.name));
                        row.note = found.note;
                        row.add_frames(round, found.best, neighbours.done());
                    }
                    Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
                    Err(error) => return Err(error),
                }
            }
        }
        conclude(&mut rows, TCPDUMP);
        all.extend(rows);
    }
    Ok(all)
}

struct Found {
    /// The trial at the highest rate that lost nothing; empty if each lost some.
    best: Frames,
    note: String,
}

/// Tries rates until the highest without loss is known to [`RESOLUTION`].
fn search(context: &Context, trial: impl Fn(Rate) -> Result<Frames>) -> Result<Found> {
    let first = tried(context, &trial, Rate::Max)?;
    if first.is_whole() {
        let note = "nothing lost at the most that could be offered".to_owned();
        return Ok(Found { best: first, note });
    }
    let mut bisection = Bisection::below(first.offered_pps());
    let (mut best, mut worse) = (Frames::default(), first);
    while let Some(pps) = bisection.next()
        && !stopped(context.stop)
    {
        let frames = tried(context, &trial, Rate::Pps(pps))?;
        bisection.tried(pps, frames.is_whole());
        if frames.is_whole() {
            best = frames;
        } else {
            worse = frames;
        }
    }
    let note = format!("at {} Mpps: {}", figure(worse.offered_pps() / 1e6), lost(&worse));
    Ok(Found { best, note })
}

/// The first of some trials that loses nothing, or the last.
fn tried(context: &Context, trial: &impl Fn(Rate) -> Result<Frames>, rate: Rate) -> Result<Frames> {
    let mut frames = trial(rate)?;
    for _ in 1..TRIES {
        if frames.is_whole() || stopped(context.stop) {
            break;
        }
        frames = trial(rate)?;
    }
    Ok(frames)
}

/// Rates in frames a second, between one that lost nothing and one that did.
struct Bisection {
    passed: f64,
    failed: f64,
    near: f64,
}

impl Bisection {
    /// Below the most that could be offered, which lost frames.
    fn below(most: f64) -> Bisection {
        Bisection { passed: 0.0, failed: most, near: most * RESOLUTION }
    }

    /// The rate to try.
    fn next(&self) -> Option<f64> {
        let far = self.failed - self.passed > self.near;
        far.then(|| f64::midpoint(self.passed, self.failed))
    }

    fn tried(&mut self, pps: f64, is_whole: bool) {
        if is_whole {
            self.passed = pps;
        } else {
            self.failed = pps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Options;
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;

    /// A tool that keeps up to `limit` frames a second, and a generator that makes a million at most.
    fn run(rate: Rate, limit: f64) -> Frames {
        let offered = match rate {
            Rate::Pps(pps) => pps,
            _ => 1e6,
        };
        let kept = offered.min(limit) as u64;
        Frames::new(offered as u64, kept, [("kernel".to_owned(), 0)].into(), 1.0)
    }

    fn found(limit: f64) -> (Found, u32) {
        let (options, stop) = (Options::default(), AtomicBool::new(false));
        let context = Context::new(&options, &stop, &|_| {});
        let trials = Cell::new(0);
        let trial = |rate| {
            trials.set(trials.get() + 1);
            Ok(run(rate, limit))
        };
        (search(&context, trial).unwrap(), trials.get())
    }

    #[test]
    fn the_highest_rate_without_loss_is_found_to_the_resolution() {
        for limit in [31_250.0, 100_000.0, 500_000.0, 734_567.0, 999_999.0] {
            let (found, trials) = found(limit);
            let rate = found.best.offered_pps();
            assert!(rate <= limit && rate >= limit - 1e6 * RESOLUTION, "{rate} for {limit}");
            // Five halvings, and the first: each twice at most.
            assert!(trials <= 12, "{trials}");
            assert!(found.note.contains("UNACCOUNTED"), "{}", found.note);
        }
    }

    #[test]
    fn a_tool_that_loses_nothing_is_asked_once_and_one_that_always_does_has_no_rate() {
        let (all, trials) = found(1e6);
        assert_eq!((all.best.kept, trials), (1_000_000, 1));
        assert!(all.note.contains("most that could be offered"));
        assert_eq!(found(0.0).0.best, Frames::default());
    }

    #[test]
    fn one_bad_moment_does_not_decide() {
        let (options, stop) = (Options::default(), AtomicBool::new(false));
        let context = Context::new(&options, &stop, &|_| {});
        let trials = Cell::new(0);
        let trial = |rate| {
            trials.set(trials.get() + 1);
            Ok(run(rate, if trials.get() == 1 { 0.0 } else { 1e6 }))
        };
        assert_eq!(search(&context, trial).unwrap().best.kept, 1_000_000);
    }
}
