//! Measures how often a capture wakes up while few or no frames arrive, and the delay of a frame that arrives after
//! silence. Improving one makes the other worse, so both are measured together.

mod bare;

use std::thread::{self, sleep};
use std::time::Duration;

use super::bar::{Bar, Side};
use super::context::{Context, stopped};
use super::machine::{Disturbance, Neighbours};
use super::percentiles::Percentiles;
use super::row::{Row, value_of};
use super::switches::{PerSecond, Switches};
use super::table::figure;
use super::tool::Tool;
use crate::generator::{self, GenEngine, GenOptions, GenReport, Rate, SIZE_MIN};
use crate::testbed::{End, Testbed};
use crate::{Error, Result};

pub(super) const SECTION: &str = "wake-ups";
const SILENT: &str = "silent";
const TRICKLE: &str = "1,000 frames/s";
const SINGLE: &str = "one frame after silence, latest";
/// Name of the reference: a thread that is woken at the same interval while the tools run.
const BARE: &str = "a thread that only sleeps";
/// The unit of wake-ups.
const PER_SECOND: &str = "1/s";
const TRICKLE_PPS: f64 = 1000.0;
/// Default number of single frames. They are sent every 107 ms, which is no multiple of an engine's sleep.
const SINGLES: u64 = 50;
const SINGLES_PPS: f64 = 9.31;
/// Time after the start, and after the first frame, in which a consumer adapts its sleep.
const SETTLE: Duration = Duration::from_millis(700);

/// Measures every engine, and tcpdump. Single frames are sent to all engines at the same time.
///
/// # Errors
/// Only if no testbed can be made. A tool that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let weirs = Tool::weirs(&context.options.weir);
    let mut rows = Vec::new();
    for tool in weirs.iter().cloned().chain([Tool::tcpdump()]) {
        if stopped(context.stop) {
            break;
        }
        match habits(context, &bed, &tool) {
            Ok(found) => rows.extend(found),
            Err(Error::Measure { reason, .. }) => rows.push(absent(&tool, reason)),
            Err(error) => return Err(error),
        }
        context.say(&format!("{SECTION}: {}", tool.name));
    }
    if !stopped(context.stop) {
        rows.extend(singles(context, &weirs)?);
    }
    rows.iter_mut().for_each(Row::summarize);
    Ok(rows)
}

fn absent(tool: &Tool, reason: String) -> Row {
    let mut row = Row::new(SECTION, tool.name, "");
    row.absent = Some(reason);
    row
}

fn name(what: &str, tool: &Tool, threads: &str) -> String {
    format!("{what}: {}{threads}", tool.name)
}

fn single_name(name: &str) -> String {
    format!("{SINGLE}: {name}")
}

/// Measures the wake-ups of one tool: rounds without frames, then rounds at a low rate.
fn habits(context: &Context, bed: &Testbed, tool: &Tool) -> Result<Vec<Row>> {
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let id = capturing.child.id();
    sleep(SETTLE);
    let silent = watched(context, tool, SILENT, id)?;
    let length = f64::from(context.rounds) * context.seconds + 2.0 * SETTLE.as_secs_f64();
    let (trickle, sent) = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let rate = Rate::Pps(TRICKLE_PPS);
            let duration = Some(Duration::from_secs_f64(length));
            send(context, &bed.tx, GenOptions { rate, duration, ..GenOptions::default() })
        });
        sleep(SETTLE);
        let trickle = watched(context, tool, TRICKLE, id);
        (trickle, sending.join().expect("the generator does not panic"))
    });
    let (mut trickle, sent) = (trickle?, sent?);
    sleep(tool.flush_time());
    // A low number of wake-ups means nothing if the tool lost the frames.
    let kept = capturing.finish()?.kept;
    if kept < sent.sent {
        trickle[0].note = format!("kept {kept} of {} frames", sent.sent);
    }
    Ok(silent.into_iter().chain(trickle).collect())
}

/// Measures a row of the consumer's thread, and a row of all threads with the rate of each in its note.
fn watched(context: &Context, tool: &Tool, what: &str, process: u32) -> Result<[Row; 2]> {
    let ended = || Error::Measure { what: tool.name.to_owned(), reason: "it has ended".to_owned() };
    let row = |threads| Row::new(SECTION, name(what, tool, threads), PER_SECOND);
    let [mut consumer, mut all] = [row(""), row(", all threads")];
    let mut last = PerSecond::default();
    for round in 0..context.rounds {
        if stopped(context.stop) {
            break;
        }
        let neighbours = Neighbours::look();
        let before = Switches::look(process).ok_or_else(ended)?;
        sleep(Duration::from_secs_f64(context.seconds));
        let now = Switches::look(process).ok_or_else(ended)?;
        last = now.per_second_since(&before);
        let disturbance = neighbours.done();
        consumer.add(round, last.consumer, disturbance);
        all.add(round, last.all, disturbance);
    }
    all.note = format!("last round: {}", last.text());
    Ok([consumer, all])
}

fn send(context: &Context, end: &End, options: GenOptions) -> Result<GenReport> {
    let options = GenOptions {
        sizes: SIZE_MIN.into(),
        cpus: vec![context.cpus.generator],
        engine: GenEngine::LiveFrames,
        ..options
    };
    end.run(|| generator::run(&end.iface, &options, context.stop))?
}

/// Sends single frames to all engines at the same time, each on its own link. One engine after the other would take
/// hours for ten thousand frames. The consumers sleep, so they do not compete for the CPU.
fn singles(context: &Context, tools: &[Tool]) -> Result<Vec<Row>> {
    let frames = context.options.singles.unwrap_or(SINGLES);
    let seconds = frames as f64 / SINGLES_PPS;
    context.say(&format!("{SECTION}: {frames} single frames to each engine, {seconds:.0} s"));
    let beds: Vec<Testbed> =
        tools.iter().map(|_| Testbed::builder().gro(true).build()).collect::<Result<_>>()?;
    let neighbours = context.calm();
    let (results, bare) = thread::scope(|scope| {
        let every = Duration::from_secs_f64(1.0 / SINGLES_PPS);
        let bare = scope.spawn(move || bare::wake_ups(context, frames, every));
        let one = |(tool, bed)| scope.spawn(move || single(context, bed, tool, frames));
        let threads: Vec<_> = tools.iter().zip(&beds).map(one).collect();
        let results = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        (results.collect::<Vec<_>>(), bare.join().expect("it does not panic"))
    });
    let disturbance = neighbours.done();
    let row = |(name, result): (&str, Result<Singles>)| match result {
        Ok(found) => Ok(found.row(name, disturbance)),
        Err(Error::Measure { reason, .. }) => {
            let mut row = Row::new(SECTION, single_name(name), "ms");
            row.absent = Some(reason);
            Ok(row)
        }
        Err(error) => Err(error),
    };
    let bare = bare.map(|delays| Singles { sent: delays.frames, delays });
    let names = tools.iter().map(|tool| tool.name).chain([BARE]);
    names.zip(results.into_iter().chain([bare])).map(row).collect()
}

/// Result of the single frames.
struct Singles {
    sent: u64,
    delays: Percentiles,
}

fn single(context: &Context, bed: &Testbed, tool: &Tool, frames: u64) -> Result<Singles> {
    let timing = tool.with(&["--latency", "rest"]);
    let capturing = timing.start(&bed.rx, context.cpus.tool)?;
    sleep(SETTLE);
    let rate = Rate::Pps(SINGLES_PPS);
    let options = GenOptions { rate, frames: Some(frames), stamp: true, ..GenOptions::default() };
    let sent = send(context, &bed.tx, options)?.sent;
    sleep(SETTLE);
    let delays = capturing.finish_weir()?.latency.unwrap_or_default();
    Ok(Singles { sent, delays })
}

impl Singles {
    /// Returns the longest delay in milliseconds; infinite if a frame never arrived.
    fn latest_ms(&self) -> f64 {
        let all_came = self.sent > 0 && self.delays.frames >= self.sent;
        if all_came { self.delays.max_us / 1e3 } else { f64::INFINITY }
    }

    fn row(&self, name: &str, disturbance: Disturbance) -> Row {
        let mut row = Row::new(SECTION, single_name(name), "ms");
        row.add(0, self.latest_ms(), disturbance);
        let Percentiles { frames, p50_us, p99_us, .. } = self.delays;
        let [p50, p99] = [p50_us, p99_us].map(|us| figure(us / 1e3));
        row.note = format!("{frames} of {} frames; median {p50} ms, p99 {p99}", self.sent);
        row
    }
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "wake-ups: voluntary context switches of the consumer's thread and of all threads, on CPU {}; single frames \
         come every {:.0} ms, stamped as those of latency, to all engines at the same time, each on a link of its own; \
         beside them a thread on CPU {} wakes one that only sleeps on CPU {} as often",
        context.cpus.tool,
        1e3 / SINGLES_PPS,
        context.cpus.generator,
        context.cpus.tool
    )
}

/// Returns the targets, which apply to the worst engine.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let tools = Tool::weirs("weir".as_ref());
    let worst = |what: &str| {
        let of = |tool: &Tool| value_of(rows, SECTION, &name(what, tool, ""), None);
        tools.iter().filter_map(of).reduce(f64::max)
    };
    let bar = |what: &str, asked: &str, unit, limit| {
        Bar::new(format!("{asked}, worst engine, {unit}"), worst(what), Side::AtMost, limit)
    };
    vec![
        bar(SILENT, "wake-ups of a silent link's consumer", PER_SECOND, 2.0),
        bar(TRICKLE, "wake-ups at 1,000 frames/s", PER_SECOND, 110.0),
        bar(SINGLE, SINGLE, "ms", 20.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn singles(sent: u64, frames: u64, max_us: f64) -> Singles {
        Singles { sent, delays: Percentiles { frames, max_us, ..Percentiles::default() } }
    }

    #[test]
    fn a_frame_that_never_came_is_later_than_any() {
        assert_eq!(singles(10, 10, 3500.0).latest_ms(), 3.5);
        assert_eq!(singles(10, 9, 3500.0).latest_ms(), f64::INFINITY);
        assert_eq!(singles(0, 0, 0.0).latest_ms(), f64::INFINITY);
    }

    #[test]
    fn the_worst_engine_decides_and_nothing_else() {
        let tools = Tool::weirs("weir".as_ref());
        let mut rows: Vec<Row> = tools
            .iter()
            .map(|tool| singles(5, 5, 4000.0).row(tool.name, Disturbance::default()))
            .collect();
        rows[1] = singles(5, 4, 1.0).row(tools[1].name, Disturbance::default());
        rows.push(singles(5, 5, 90_000.0).row(BARE, Disturbance::default()));
        for (tool, rate) in [(&tools[0], 1.0), (&tools[1], 2.0), (&Tool::tcpdump(), 9.0)] {
            let mut row = Row::new(SECTION, name(SILENT, tool, ""), PER_SECOND);
            row.add(0, rate, Disturbance::default());
            rows.push(row);
        }
        rows.iter_mut().for_each(Row::summarize);
        let met: Vec<_> = bars(&rows).iter().map(|bar| bar.met).collect();
        assert_eq!(met, [Some(true), None, Some(false)]);
    }
}
