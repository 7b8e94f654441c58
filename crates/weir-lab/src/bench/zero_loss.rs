//! Measures the highest rate without loss: throughput as defined in RFC 2544, section 26.1.
//!
//! The rate is found by bisection between a rate that lost frames and one that lost none. Each trial is a separate run,
//! compared with the generator's exact count. The RFC demands trials of 60 s. Here they last
//! [`Options::trial`](super::context::Options::trial); in short trials, a buffer can hide a slow reader.

use super::context::{Context, stopped};
use super::row::{Frames, Row, conclude, lost};
use super::table::figure;
use super::tool::{TCPDUMP, Tool};
use super::wire::{self, Traffic, Turns};
use crate::Result;
use crate::generator::Rate;

pub(super) const SECTION: &str = "zero-loss";
const SIZES: [u32; 1] = [64];
const SIZES_FULL: [u32; 2] = wire::SIZES;
/// The search ends when the two rates differ by at most this share of the highest offered rate.
pub(super) const RESOLUTION: f64 = 1.0 / 32.0;
/// Number of trials with loss after which a rate has failed. A single loss may be the fault of other programs on a
/// shared machine.
pub(super) const TRIES: u32 = 2;
/// Most trials of one rate. A trial in which the generator did not reach the rate is also repeated.
const TRIALS: u32 = 4;

/// Searches for the rate of every tool.
///
/// # Errors
/// Only if no testbed can be made. A tool that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let sizes: &[u32] = if context.options.full { &SIZES_FULL } else { &SIZES };
    let tools = Tool::all(&context.options.weir);
    let turns = Turns { section: SECTION, sizes, rounds: context.searches, tools: &tools };
    let mut rows = wire::in_turn(context, turns, |bed, tool, size| {
        let found = search(context, |rate| {
            let traffic = Traffic { size, rate, seconds: context.trial, stamp: false };
            wire::one(context, bed, tool, traffic)
        })?;
        Ok((found.best, found.note))
    })?;
    conclude(&mut rows, TCPDUMP);
    Ok(rows)
}

struct Found {
    /// The trial without loss that had the highest offered rate; empty if every trial lost frames.
    best: Frames,
    note: String,
}

/// Tries rates until the highest rate without loss is known to [`RESOLUTION`].
fn search(context: &Context, trial: impl Fn(Rate) -> Result<Frames>) -> Result<Found> {
    let first = tried(context, &trial, Rate::Max, 0.0)?;
    if let Some(best) = first.whole {
        let note = "nothing lost at the most that could be offered".to_owned();
        return Ok(Found { best, note });
    }
    let mut worse = first.lossy.unwrap_or_default();
    let mut bisection = Bisection::below(worse.offered_pps());
    let (mut best, mut not_offered) = (Frames::default(), None);
    while let Some(pps) = bisection.next()
        && !stopped(context.stop)
    {
        let least = pps - bisection.near;
        let tried = tried(context, &trial, Rate::Pps(pps), least)?;
        let has_passed = tried.has_passed(least);
        // A rate that was not offered has not passed. The search continues at lower rates.
        bisection.tried(pps, has_passed);
        if !has_passed && tried.lossy.is_none() {
            not_offered = Some(pps);
        }
        best = more_offered(tried.whole, best);
        worse = tried.lossy.filter(|_| !has_passed).unwrap_or(worse);
    }
    let mut note = format!("at {} Mpps: {}", figure(worse.offered_pps() / 1e6), lost(&worse));
    if let Some(pps) = not_offered {
        note += &format!("; {} Mpps could not be offered", figure(pps / 1e6));
    }
    Ok(Found { best, note })
}

/// Trials of one rate.
#[derive(Default)]
struct Tried {
    /// The trial without loss that had the highest offered rate.
    whole: Option<Frames>,
    /// The last trial that lost frames.
    lossy: Option<Frames>,
}

impl Tried {
    /// Returns whether a trial without loss offered at least `least` frames per second.
    fn has_passed(&self, least: f64) -> bool {
        self.whole.as_ref().is_some_and(|frames| frames.offered_pps() >= least)
    }
}

/// Repeats a rate until a trial passes without loss at `least` frames per second or more, [`TRIES`]
/// trials have lost frames, or [`TRIALS`] were made.
fn tried(
    context: &Context,
    trial: &impl Fn(Rate) -> Result<Frames>,
    rate: Rate,
    least: f64,
) -> Result<Tried> {
    let (mut tried, mut losses) = (Tried::default(), 0);
    for _ in 0..TRIALS {
        let frames = trial(rate)?;
        if frames.is_whole() {
            tried.whole = Some(more_offered(tried.whole, frames));
        } else {
            losses += 1;
            tried.lossy = Some(frames);
        }
        if tried.has_passed(least) || losses == TRIES || stopped(context.stop) {
            break;
        }
    }
    Ok(tried)
}

fn more_offered(one: Option<Frames>, other: Frames) -> Frames {
    one.filter(|one| one.offered_pps() > other.offered_pps()).unwrap_or(other)
}

/// Bisection of rates in frames per second, between one that lost nothing and one that lost frames.
struct Bisection {
    passed: f64,
    failed: f64,
    near: f64,
}

impl Bisection {
    /// Starts a bisection below the highest rate that could be offered, which lost frames.
    fn below(most: f64) -> Bisection {
        Bisection { passed: 0.0, failed: most, near: most * RESOLUTION }
    }

    /// Returns the next rate to try; `None` if the two rates are close enough.
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

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "zero-loss: RFC 2544, 26.1, by halving: trials of {} s (the RFC: 60 s), a rate that lost frames is \
         tried {TRIES} times, to 1/{:.0} of the most offered; searched {} times",
        context.trial,
        1.0 / RESOLUTION,
        context.searches
    )
}

#[cfg(test)]
mod tests {
    use super::super::context::Options;
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;

    /// A tool that keeps up to `limit` frames a second, with a generator that sends at most a
    /// million.
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
            // The first rate and five halvings, each tried at most twice.
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

    /// A search for a tool that keeps up to 800,000 frames a second, whose generator offers `share`
    /// of the requested rate. Also gives the number of trials.
    fn held_up(share: impl Fn(u32, f64) -> f64) -> (Found, u32) {
        let (options, stop) = (Options::default(), AtomicBool::new(false));
        let context = Context::new(&options, &stop, &|_| {});
        let trials = Cell::new(0);
        let trial = |rate| {
            trials.set(trials.get() + 1);
            Ok(match rate {
                Rate::Pps(pps) => run(Rate::Pps(pps * share(trials.get(), pps)), 800_000.0),
                rate => run(rate, 800_000.0),
            })
        };
        (search(&context, trial).unwrap(), trials.get())
    }

    #[test]
    fn a_rate_that_was_not_offered_is_tried_again() {
        let (found, _) = held_up(|trial, _| if trial % 3 == 0 { 0.6 } else { 1.0 });
        let rate = found.best.offered_pps();
        assert!((8e5 - 1e6 * RESOLUTION..=8e5).contains(&rate), "{rate}");
        assert!(!found.note.contains("could not be offered"), "{}", found.note);
    }

    #[test]
    fn a_rate_that_is_never_offered_has_not_passed_and_the_search_ends() {
        let (found, trials) = held_up(|_, pps| (600_000.0 / pps).min(1.0));
        let rate = found.best.offered_pps();
        assert!((6e5 - 1e6 * RESOLUTION..=6e5).contains(&rate), "{rate}");
        assert!(found.note.contains("Mpps could not be offered"), "{}", found.note);
        assert!(trials <= 2 + 5 * TRIALS, "{trials}");
        // The highest rate that was offered without loss counts, even if a higher one was
        // requested.
        let (found, _) = held_up(|trial, pps| if trial == 4 { 0.7e6 / pps } else { 0.1 });
        assert!((found.best.offered_pps() - 0.7e6).abs() < 1.0, "{}", found.best.offered_pps());
    }
}
