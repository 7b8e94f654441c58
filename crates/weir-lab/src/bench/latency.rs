//! Measures the time from the generator's stamp to the consumer, at rates that overload no engine.
//!
//! The generator writes the time of CLOCK_TAI into each frame when it creates the frame, at most 64 frames before the
//! link has it. `weir capture --latency` reads the same clock when it reaches the frame in its own copy. Peers are left
//! out, because none of them can run a consumer of the bench.

use std::thread::sleep;
use std::time::Duration;

use super::context::{Context, stopped};
use super::percentiles::Percentiles;
use super::row::{Frames, Row, conclude};
use super::tool::Tool;
use super::wire::{self, Traffic};
use crate::generator::{Rate, SIZE_MIN};
use crate::testbed::Testbed;
use crate::{Error, Result};

pub(super) const SECTION: &str = "latency";
/// The unit of delays.
pub(super) const US: &str = "us";
/// The rate at which every engine is measured.
const STEADY_PPS: f64 = 100_000.0;
/// The second rate, as a share of the highest rate that the engine keeps.
const SHARE: f64 = 0.1;
/// Length of the run that finds that highest rate.
const PROBE_SECONDS: f64 = 1.0;
/// Longer runs would show no more: in this time, 200 frames at 100 kpps are above p99.9.
const SECONDS_MAX: f64 = 2.0;
/// Time from the last sent frame to the signal to end; longer than the delay of any engine.
const SETTLE: Duration = Duration::from_millis(100);

/// An engine with a consumer that measures the delay of frames.
struct Case {
    plain: Tool,
    timing: Tool,
    steady: Row,
    share: Row,
    share_pps: Option<f64>,
}

impl Case {
    fn new(plain: Tool, how: &str) -> Case {
        let timing = plain.with(&["--latency", how]);
        let polls = if how == "poll" { ", polling" } else { "" };
        let row = |rate: &str| {
            Row::new(SECTION, format!("{}{polls}, {rate}", plain.name), US).sized(SIZE_MIN)
        };
        let (steady, share) = (row("100 kpps"), row("10 % of its most"));
        Case { plain, timing, steady, share, share_pps: None }
    }
}

/// Measures each live engine at both rates.
///
/// # Errors
/// Only if no testbed can be made. An engine that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let weirs = Tool::weirs(&context.options.weir);
    // A polling consumer beside a thread that moves frames would need more than one CPU.
    let polling = weirs.iter().filter(|tool| tool.has_no_thread_of_its_own()).cloned();
    let mut cases: Vec<Case> = polling.map(|tool| Case::new(tool, "poll")).collect();
    cases.splice(0..0, weirs.iter().cloned().map(|tool| Case::new(tool, "rest")));
    for round in 0..context.rounds {
        for case in &mut cases {
            if stopped(context.stop) {
                break;
            }
            if case.steady.absent.is_some() {
                continue;
            }
            match both(context, &bed, case, round) {
                Ok(()) => {}
                Err(Error::Measure { reason, .. }) => {
                    case.share.absent = Some(reason.clone());
                    case.steady.absent = Some(reason);
                }
                Err(error) => return Err(error),
            }
        }
        context.say(&format!("latency, round {}", round + 1));
    }
    let mut rows: Vec<Row> = cases.into_iter().flat_map(|case| [case.steady, case.share]).collect();
    conclude(&mut rows, "");
    Ok(rows)
}

fn both(context: &Context, bed: &Testbed, case: &mut Case, round: u32) -> Result<()> {
    let share_pps = match case.share_pps {
        Some(pps) => pps,
        None => {
            let seconds = context.seconds.min(PROBE_SECONDS);
            let traffic = Traffic { size: SIZE_MIN, rate: Rate::Max, seconds, stamp: false };
            let most = wire::one(context, bed, &case.plain, traffic)?.kept_mpps() * 1e6;
            // The rate must not be 0, even if no frame was kept.
            *case.share_pps.insert((most * SHARE).max(1.0))
        }
    };
    case.share.note = format!("{:.0} kpps", share_pps / 1e3);
    for (row, pps) in [(&mut case.steady, STEADY_PPS), (&mut case.share, share_pps)] {
        let neighbours = context.calm();
        let (frames, percentiles) = one(context, bed, &case.timing, pps)?;
        row.add_latency(round, frames, percentiles, neighbours.done());
    }
    Ok(())
}

fn one(context: &Context, bed: &Testbed, tool: &Tool, pps: f64) -> Result<(Frames, Percentiles)> {
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let seconds = context.seconds.min(SECONDS_MAX);
    let traffic = Traffic { size: SIZE_MIN, rate: Rate::Pps(pps), seconds, stamp: true };
    let sent = wire::send(context, &bed.tx, traffic)?;
    sleep(SETTLE);
    let report = capturing.finish_weir()?;
    let failed = |reason: &str| Error::Measure { what: tool.name.into(), reason: reason.into() };
    let percentiles = report.latency.ok_or_else(|| failed("its report has no latency"))?;
    if percentiles.frames == 0 {
        return Err(failed("none of its frames had a stamp"));
    }
    let counted = report.counted();
    let seconds = sent.duration.as_secs_f64();
    Ok((Frames::new(sent.sent, counted.kept, counted.drops, seconds), percentiles))
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "latency: from the stamp that the generator puts in a 64 B frame as it makes it (up to 64 before \
         the link has it) to weir's consumer on CPU {} looking into its copy of it; a resting consumer \
         pauses 50 us to 9.5 ms between looks, as its ring fills, and sleeps once nothing comes; a polling one \
         looks every 20 to 50 us",
        context.cpus.tool
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_timed_and_those_without_a_thread_also_polling() {
        let weirs = Tool::weirs("weir".as_ref());
        let polling: Vec<_> = weirs.iter().filter(|tool| tool.has_no_thread_of_its_own()).collect();
        assert!(!polling.is_empty() && polling.len() < weirs.len());
        let case = Case::new(polling[0].clone(), "poll");
        assert!(case.steady.what.ends_with("polling, 100 kpps"), "{}", case.steady.what);
    }
}
