//! Measures one capture of all links of a machine with two hundred links, and links that are added later.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use super::bar::{Bar, Side};
use super::child::Line;
use super::clock::{of_day, since, stamp};
use super::context::{Context, stopped};
use super::counted::weir_report;
use super::footprint::Footprint;
use super::row::{Row, ratio_of, value_of};
use super::tool::{Capturing, Tool};
use crate::generator::mix::{self, MixOptions};
use crate::testbed::{End, Testbed};
use crate::{Error, Result};

pub(super) const SECTION: &str = "any";
const ANY: &str = "weir capture any";
/// An engine that supports patterns, so that both rows measure the memory of the same engine.
const ENGINE: &str = "af_packet";
const ONE: &str = "weir, one link";
const START: &str = "time to start: ";
const MEMORY: &str = "memory: ";
const EXACT: &str = "links whose frames were all captured: ";
const JOINS: &str = "a link that joins, first frame captured after: ";
/// Links in addition to the testbed's own.
const LINKS: u32 = 200;
/// Links that are added during the capture, fewer with `--quick`; their interface numbers begin at
/// `FIRST_JOINING`.
const JOINING: u32 = 10;
const JOINING_QUICK: u32 = 3;
const FIRST_JOINING: u32 = 1000;
/// Rate on a link that has just been added.
const JOINED_PPS: f64 = 1000.0;
const JOINED_FRAMES: u64 = 200;
/// Time from the last frame to the signal to end, so that the frame's line is still printed.
const SETTLE: Duration = Duration::from_millis(500);

/// Measures the time to start, memory, exact counts, and links that are added.
///
/// # Errors
/// Only if no testbed can be made. A capture that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let pairs = bed.add_pairs(1, LINKS)?;
    pairs.iter().try_for_each(|pair| pair.wait_for_carrier())?;
    context.say(&format!("{SECTION}: {LINKS} more links"));
    let mut ends = vec![bed.tx.clone()];
    ends.extend(pairs.into_iter().map(|pair| pair.tx));
    match all(context, &bed, &ends) {
        Ok(rows) => Ok(rows),
        Err(Error::Measure { reason, .. }) => {
            let mut row = Row::new(SECTION, ANY, "");
            row.absent = Some(reason);
            Ok(vec![row])
        }
        Err(error) => Err(error),
    }
}

fn all(context: &Context, bed: &Testbed, ends: &[End]) -> Result<Vec<Row>> {
    let one = Tool::weir(&context.options.weir, ONE, ENGINE, &[]);
    let every = one.clone().named(ANY).with_source("any");
    let row =
        |what: &str, tool: &Tool, unit| Row::new(SECTION, format!("{what}{}", tool.name), unit);
    let mut starts = [&one, &every].map(|tool| row(START, tool, "s"));
    let mut memory = [&one, &every].map(|tool| row(MEMORY, tool, "MiB"));
    for round in 0..context.rounds {
        for (index, tool) in [&one, &every].into_iter().enumerate() {
            if stopped(context.stop) {
                break;
            }
            let neighbours = context.calm();
            let (capturing, seconds) = started(context, bed, tool)?;
            let footprint =
                Footprint::of(capturing.child.id()).ok_or_else(|| failed("it has ended"))?;
            capturing.finish_weir()?;
            let disturbance = neighbours.done();
            starts[index].add(round, seconds, disturbance);
            memory[index].add(round, footprint.kib() as f64 / 1024.0, disturbance);
            let Footprint { own_kib, rings_kib, maps_kib } = footprint;
            memory[index].note =
                format!("{own_kib} KiB of its own, rings {rings_kib}, BPF maps {maps_kib}");
        }
    }
    let neighbours = context.calm();
    let (mut exact, mut joins) = (row(EXACT, &every, "x"), row(JOINS, &every, "ms"));
    if !stopped(context.stop) {
        let found = printed(context, bed, &every, ends)?;
        let disturbance = neighbours.done();
        exact.add(0, found.exact as f64 / ends.len() as f64, disturbance);
        exact.note = format!("{} of {}", found.exact, ends.len());
        if let Some(wrong) = found.wrong {
            exact.note += &format!("; {wrong}");
        }
        for (round, ms) in (0..).zip(found.joined_ms) {
            joins.add(round, ms, disturbance);
        }
        joins.note = format!("with ip's own time; {}", found.joined);
    }
    let mut rows: Vec<Row> = starts.into_iter().chain(memory).chain([exact, joins]).collect();
    rows.iter_mut().for_each(Row::summarize);
    let base = rows[2].clone();
    rows[2].compare(&base);
    rows[3].compare(&base);
    Ok(rows)
}

fn failed(reason: &str) -> Error {
    Error::Measure { what: ANY.to_owned(), reason: reason.to_owned() }
}

/// Starts the tool. Also returns the seconds until it reported that it captures.
fn started(context: &Context, bed: &Testbed, tool: &Tool) -> Result<(Capturing, f64)> {
    let begin = SystemTime::now();
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let ready = capturing.ready_at().ok_or_else(|| failed("it never said that it captures"))?;
    let took = ready.duration_since(begin).unwrap_or_default();
    Ok((capturing, took.as_secs_f64()))
}

/// Evaluated output of a capture that prints frames.
struct Printed {
    /// Number of links of which each frame was printed exactly once.
    exact: usize,
    /// One of the links with wrong counts, and these counts.
    wrong: Option<String>,
    /// For each added link, milliseconds from the call that added the link to its first frame.
    joined_ms: Vec<f64>,
    joined: String,
}

/// Sends a different number of frames on every link, then adds links and sends frames on them.
fn printed(context: &Context, bed: &Testbed, every: &Tool, ends: &[End]) -> Result<Printed> {
    let printing = every.with(&[
        "--print",
        "--time",
        "utc",
        "--nano",
        "--merge-slack",
        "0ms",
        "--direction",
        "in",
    ]);
    let capturing = printing.start(&bed.rx, context.cpus.tool)?;
    let mut sent: BTreeMap<String, u64> = BTreeMap::new();
    for (n, end) in (0..).zip(ends) {
        sent.insert(receiving(end), send(end, 3 + n % 7, 1e5)?);
    }
    let joining = if context.options.quick { JOINING_QUICK } else { JOINING };
    let mut made = Vec::new();
    for number in FIRST_JOINING..FIRST_JOINING + joining {
        if stopped(context.stop) {
            break;
        }
        let (at, begin) = (SystemTime::now(), Instant::now());
        let pair = bed.add_pairs(number, 1)?.swap_remove(0);
        let up_ms = begin.elapsed().as_secs_f64() * 1e3;
        send(&pair.tx, JOINED_FRAMES, JOINED_PPS)?;
        made.push((pair.rx.iface, at, up_ms));
    }
    sleep(SETTLE);
    let lines = capturing.child.interrupt()?;
    let report = weir_report(&lines).ok_or_else(|| failed("no counts in its output"))?;
    let seen = by_link(&lines);
    let count = |link: &str| seen.get(link).map_or(0, |found| found.frames);
    let wrong = sent.iter().find(|(link, sent)| count(link) != **sent);
    let wrong = wrong.map(|(link, sent)| format!("{link}: {} of {sent}", count(link)));
    let exact = sent.iter().filter(|(link, sent)| count(link) == **sent).count();
    let joined_ms = made.iter().map(|(link, at, _)| match seen.get(link.as_str()) {
        Some(found) => since(of_day(*at), found.first).as_secs_f64() * 1e3,
        None => f64::INFINITY,
    });
    let joined_ms = joined_ms.collect();
    let up_ms = made.iter().map(|made| made.2).fold(0.0, f64::max);
    let missed: u64 = made.iter().map(|(link, ..)| JOINED_FRAMES.saturating_sub(count(link))).sum();
    let joined = format!(
        "up after {up_ms:.1} ms at most; {missed} of {} frames were sent too early; lapped {}",
        made.len() as u64 * JOINED_FRAMES,
        report.lapped
    );
    Ok(Printed { exact, wrong, joined_ms, joined })
}

/// Returns the name of the receiving end of a pair.
fn receiving(tx: &End) -> String {
    tx.iface.replace("wtx", "wrx")
}

fn send(tx: &End, frames: u64, rate_pps: f64) -> Result<u64> {
    let never = AtomicBool::new(false);
    let options = MixOptions { rate_pps, frames: Some(frames), duration: None };
    Ok(tx.run(|| mix::run(&tx.iface, &options, &never))??.sent)
}

/// Printed frames of one link.
#[derive(Debug, PartialEq)]
struct Seen {
    frames: u64,
    /// Time stamp of the link's first frame, as a time of day.
    first: Duration,
}

/// Groups printed frames by the link that they came from: `12:34:56.123456789 wrx0 In ARP ...`.
fn by_link(lines: &[Line]) -> BTreeMap<&str, Seen> {
    let mut seen: BTreeMap<&str, Seen> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.data) {
        let (Some(first), Some(link)) = (stamp(&line.text), line.text.split_whitespace().nth(1))
        else {
            continue;
        };
        seen.entry(link).or_insert(Seen { frames: 0, first }).frames += 1;
    }
    seen
}

/// Describes how this part is measured.
pub(super) fn condition(_context: &Context) -> String {
    format!(
        "any: {LINKS} more veth pairs, their receiving ends in one namespace; engine {ENGINE}; frames are counted by \
         the lines that --print has of each; a link that joins gets {JOINED_PPS} frames/s as soon as it is up"
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let named = |what: &str| format!("{what}{ANY}");
    let value = |what: &str| value_of(rows, SECTION, &named(what), None);
    let is_joining = |row: &&Row| row.what == named(JOINS);
    let latest = rows.iter().find(is_joining).and_then(|row| Some(row.value?.max));
    vec![
        Bar::new(format!("{ANY}, {LINKS} more links: start, s"), value(START), Side::AtMost, 1.0),
        Bar::new(
            format!("{ANY}, {LINKS} more links: memory / one link"),
            ratio_of(rows, SECTION, &named(MEMORY), None),
            Side::AtMost,
            1.1,
        ),
        Bar::new(
            format!("{ANY}: share of links with exact counts"),
            value(EXACT),
            Side::AtLeast,
            1.0,
        ),
        Bar::new(format!("{ANY}: a link that joins, latest, ms"), latest, Side::AtMost, 50.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    fn line(text: &str, data: bool) -> Line {
        Line { at: UNIX_EPOCH, text: text.to_owned(), data }
    }

    #[test]
    fn printed_frames_are_counted_by_link() {
        let lines = [
            line("weir: any: af_packet at socket", false),
            line("12:00:00.000000002 wrx1 in ARP", true),
            line("12:00:00.000000003 wrx10 in ARP", true),
            line("12:00:00.000000004 wrx1 in ARP", true),
            line("{}", true),
        ];
        let seen = by_link(&lines);
        let noon = Duration::from_secs(43_200);
        let of = |frames, ns| Seen { frames, first: noon + Duration::from_nanos(ns) };
        assert_eq!(seen, [("wrx1", of(2, 2)), ("wrx10", of(1, 3))].into());
    }

    #[test]
    fn the_latest_link_decides_and_one_that_is_wrong_is_too_many() {
        let mut joins = Row::new(SECTION, format!("{JOINS}{ANY}"), "ms");
        let mut exact = Row::new(SECTION, format!("{EXACT}{ANY}"), "x");
        (0..).zip([9.0, 8.0, 70.0]).for_each(|(n, ms)| joins.add(n, ms, Default::default()));
        exact.add(0, 200.0 / 201.0, Default::default());
        let mut rows = vec![joins, exact];
        rows.iter_mut().for_each(Row::summarize);
        let met: Vec<_> = bars(&rows).iter().map(|bar| bar.met).collect();
        assert_eq!(met, [None, None, Some(false), Some(false)]);
    }
}
