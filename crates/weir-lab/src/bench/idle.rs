//! Measures the cost of a capture that receives no frames, and the delay of a single frame.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::bar::{Bar, Side};
use super::child::cpu_ns;
use super::clock::{of_day, since, stamp};
use super::context::{Context, stopped};
use super::footprint::Footprint;
use super::row::{Row, conclude, value_of};
use super::tool::Tool;
use super::wire;
use super::wire::Traffic;
use crate::generator::mix::{self, MixOptions};
use crate::generator::{Rate, SIZE_MIN};
use crate::testbed::Testbed;
use crate::{Error, Result};

pub(super) const SECTION: &str = "idle";
pub(super) const CPU: &str = "CPU of an idle capture";
pub(super) const LATENCY: &str = "a single frame, median";
pub(super) const LATENCY_MAX: &str = "a single frame, longest";
pub(super) const RSS: &str = "memory beyond the rings";

const IDLE: Duration = Duration::from_secs(5);
/// Number of frames sent one by one.
const SINGLES: u64 = 50;
/// Frames are about 50 ms apart; the interval is no multiple of an engine's sleep.
const SINGLES_PPS: f64 = 19.3;
/// Length of a run at full rate. After it, the capture has touched all memory that it uses.
const WARM: Duration = Duration::from_secs(1);

/// Measures each live engine once. An idle process needs no rounds.
///
/// # Errors
/// Only if no testbed can be made. An engine that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let mut rows = Vec::new();
    for tool in Tool::weirs(&context.options.weir) {
        if stopped(context.stop) {
            break;
        }
        let row = |what: &str, unit| Row::new(SECTION, format!("{what}: {}", tool.name), unit);
        let mut own =
            vec![row(CPU, "%"), row(RSS, "MiB"), row(LATENCY, "ms"), row(LATENCY_MAX, "ms")];
        let neighbours = context.calm();
        match one(context, &bed, &tool) {
            Ok(quiet) => {
                let values = [quiet.cpu_percent, quiet.rss_mib, quiet.median_ms, quiet.max_ms];
                for (row, value) in own.iter_mut().zip(values) {
                    row.add(0, value, neighbours.done());
                }
                own[2].note = format!("of {} frames", quiet.singles);
            }
            Err(Error::Measure { reason, .. }) => {
                own = vec![Row::new(SECTION, tool.name, "")];
                own[0].absent = Some(reason);
            }
            Err(error) => return Err(error),
        }
        context.say(&format!("idle: {}", tool.name));
        conclude(&mut own, "");
        rows.extend(own);
    }
    Ok(rows)
}

struct Quiet {
    cpu_percent: f64,
    rss_mib: f64,
    median_ms: f64,
    max_ms: f64,
    singles: usize,
}

fn one(context: &Context, bed: &Testbed, tool: &Tool) -> Result<Quiet> {
    let unreadable = |what: &str| Error::Measure {
        what: tool.name.to_owned(),
        reason: format!("cannot read {what} of its process"),
    };
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let id = capturing.child.id();
    sleep(Duration::from_millis(500));
    let (begin, before) = (Instant::now(), cpu_ns(id).ok_or_else(|| unreadable("schedstat"))?);
    sleep(IDLE);
    let used = cpu_ns(id).ok_or_else(|| unreadable("schedstat"))?.saturating_sub(before);
    let cpu_percent = 100.0 * used as f64 / begin.elapsed().as_nanos() as f64;
    let traffic =
        Traffic { size: SIZE_MIN, rate: Rate::Max, seconds: WARM.as_secs_f64(), stamp: false };
    wire::send(context, &bed.tx, traffic)?;
    sleep(Duration::from_millis(200));
    let footprint = Footprint::of(id).ok_or_else(|| unreadable("smaps"))?;
    capturing.finish_weir()?;

    let latencies = latencies(context, bed, tool)?;
    let ms = |latency: Duration| latency.as_secs_f64() * 1e3;
    let (Some(&max), middle) = (latencies.last(), latencies.len() / 2) else {
        let reason = "none of the single frames was printed".to_owned();
        return Err(Error::Measure { what: tool.name.to_owned(), reason });
    };
    Ok(Quiet {
        cpu_percent,
        rss_mib: footprint.own_kib as f64 / 1024.0,
        median_ms: ms(latencies[middle]),
        max_ms: ms(max),
        singles: latencies.len(),
    })
}

/// Measures the times from a frame's stamp, taken in the kernel on arrival, to the arrival of its printed line here.
/// Returns them sorted. The printing consumer merges rings without slack, so that only the delay of the capture is
/// measured.
fn latencies(context: &Context, bed: &Testbed, tool: &Tool) -> Result<Vec<Duration>> {
    let printing = tool.with(&["--print", "--time", "utc", "--nano", "--merge-slack", "0ms"]);
    let capturing = printing.start(&bed.rx, context.cpus.tool)?;
    let options = MixOptions { rate_pps: SINGLES_PPS, frames: Some(SINGLES), duration: None };
    let never = AtomicBool::new(false);
    bed.tx.run(|| mix::run(&bed.tx.iface, &options, &never))??;
    sleep(Duration::from_millis(100));
    let lines = capturing.child.lines();
    capturing.child.interrupt()?;
    let mut latencies: Vec<Duration> = lines
        .iter()
        .filter(|line| line.data)
        .filter_map(|line| Some(since(stamp(&line.text)?, of_day(line.at))))
        .collect();
    latencies.sort_unstable();
    Ok(latencies)
}

/// Returns the targets, which apply to the worst engine.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let tools = Tool::weirs(Path::new("weir"));
    let bar = |(what, unit, side, limit): (&str, &str, Side, f64)| {
        let of = |tool: &Tool| value_of(rows, SECTION, &format!("{what}: {}", tool.name), None);
        let found = tools.iter().filter_map(of).reduce(f64::max);
        Bar::new(format!("{what}, worst engine, {unit}"), found, side, limit)
    };
    vec![
        bar((CPU, "%", Side::Below, 1.0)),
        bar((LATENCY_MAX, "ms", Side::Below, 20.0)),
        bar((RSS, "MiB", Side::AtMost, 64.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_its_cpu() {
        assert!(cpu_ns(std::process::id()).is_some_and(|ns| ns > 0));
    }
}
