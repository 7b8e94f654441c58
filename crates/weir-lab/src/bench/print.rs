//! Measures frames as lines of text: the cost of printing compared with tcpdump, and the time to the first line.
//!
//! Lines are written to a file in memory. The lines that are frames are counted: a frame without a line is lost.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant, SystemTime};

use super::bar::{Bar, Side};
use super::child::{Child, Line, cpu_ns, pinned};
use super::context::{Context, stopped};
use super::counted::{self, weir_report};
use super::machine::Disturbance;
use super::row::{Frames, Row, conclude, find, ratio_of, value_of};
use super::tool::{Capturing, Tool};
use crate::generator::mix::{self, MixOptions};
use crate::generator::sizes::{IMIX, Sizes};
use crate::generator::{self, GenEngine, GenOptions, Rate, SIZE_MIN};
use crate::testbed::Testbed;
use crate::{Error, Result};

pub(super) const SECTION: &str = "print";
const WEIR: &str = "weir capture --print";
const WEIR_SOCKET: &str = "weir capture --print, af_packet";
const TCPDUMP_LINES: &str = "tcpdump -nn";
const WEIR_FILE: &str = "weir capture -w /dev/null";
const TCPDUMP_FILE: &str = "tcpdump -w /dev/null";
const START: &str = "start to the first line: ";
const MIXED: &str = "mixed sizes: ";
const RATE_PPS: f64 = 200_000.0;
const MIXED_PPS: f64 = 20_000.0;
const MIXED_SECONDS: f64 = 60.0;
/// Rate of frames, which are sent from before the start of the tool, so that it captures one at once.
const FIRST_LINE_PPS: f64 = 2000.0;
const FIRST_LINE_LIMIT: Duration = Duration::from_secs(10);

/// Measures the cost of printing, the time to the first line, and mixed frame sizes.
///
/// # Errors
/// Only if no testbed can be made. A tool that fails gives a row with the reason.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let bed = Testbed::builder().gro(true).build()?;
    let weir = &context.options.weir;
    let tools = [
        Tool::weir(weir, WEIR, "bpf", &["--print"]),
        Tool::weir(weir, WEIR_SOCKET, "af_packet", &["--print"]),
        Tool::tcpdump_lines().named(TCPDUMP_LINES),
    ];
    let cost = |tool: &Tool| Row::new(SECTION, tool.name, "% of a CPU").sized(SIZE_MIN);
    let mut costs: Vec<Row> = tools.iter().map(cost).collect();
    let start = |tool: &Tool| Row::new(SECTION, format!("{START}{}", tool.name), "ms");
    let mut starts: Vec<Row> = tools.iter().map(start).collect();
    for round in 0..context.rounds {
        for (tool, (cost, start)) in tools.iter().zip(costs.iter_mut().zip(&mut starts)) {
            if stopped(context.stop) || cost.absent.is_some() {
                continue;
            }
            row_or_reason(cost_of_round(context, &bed, tool, round, cost), cost)?;
            if start.absent.is_none() {
                row_or_reason(start_of_round(context, &bed, tool, round, start), start)?;
            }
            context.say(&format!("{SECTION}, round {}: {}", round + 1, tool.name));
        }
    }
    let mixed = mixed_sizes(context, &bed, &tools[0])?;
    for rows in [&mut costs, &mut starts] {
        let base = rows[2].what.clone();
        conclude(rows, &base);
    }
    Ok(costs.into_iter().chain(starts).chain(mixed).collect())
}

/// Stores the failure of a tool as the reason in its row.
fn row_or_reason(found: Result<()>, row: &mut Row) -> Result<()> {
    match found {
        Err(Error::Measure { reason, .. }) => row.absent = Some(reason),
        found => return found,
    }
    Ok(())
}

fn cost_of_round(
    context: &Context,
    bed: &Testbed,
    tool: &Tool,
    round: u32,
    cost: &mut Row,
) -> Result<()> {
    let options = GenOptions {
        rate: Rate::Pps(RATE_PPS),
        duration: Some(Duration::from_secs_f64(context.seconds)),
        ..generating(context)
    };
    cost_of_printing(context, bed, tool, round, &options, cost)
}

fn cost_of_printing(
    context: &Context,
    bed: &Testbed,
    tool: &Tool,
    round: u32,
    options: &GenOptions,
    cost: &mut Row,
) -> Result<()> {
    let neighbours = context.calm();
    let frames = printed(context, bed, tool, options)?;
    add_cost(cost, round, frames, neighbours.done());
    Ok(())
}

fn add_cost(cost: &mut Row, round: u32, frames: Frames, disturbance: Disturbance) {
    let percent = 100.0 * frames.cpu_seconds.unwrap_or_default() / frames.seconds.max(1e-9);
    cost.add_counted(round, percent, frames, disturbance);
}

/// Sends frames to a tool that captures. Returns the generator's report, and the CPU time of the tool in seconds.
fn send(
    context: &Context,
    bed: &Testbed,
    tool: &Tool,
    capturing: &Capturing,
    options: &GenOptions,
) -> Result<(generator::GenReport, Option<f64>)> {
    let id = capturing.child.id();
    let before = cpu_ns(id);
    let sent = bed.tx.run(|| generator::run(&bed.tx.iface, options, context.stop))??;
    sleep(tool.flush_time());
    let ns = cpu_ns(id).zip(before).map(|(after, before)| after.saturating_sub(before));
    Ok((sent, ns.map(|ns| ns as f64 / 1e9)))
}

fn start_of_round(
    context: &Context,
    bed: &Testbed,
    tool: &Tool,
    round: u32,
    start: &mut Row,
) -> Result<()> {
    let neighbours = context.calm();
    let took = first_line(context, bed, tool)?;
    start.add(round, took.as_secs_f64() * 1e3, neighbours.done());
    Ok(())
}

/// Measures once, for a minute each, at the rate of a quiet link: printing, and captures into a file in memory.
fn mixed_sizes(context: &Context, bed: &Testbed, printing: &Tool) -> Result<Vec<Row>> {
    let seconds = if context.options.quick { context.seconds } else { MIXED_SECONDS };
    let sizes = Sizes::mix(&IMIX).map_err(|reason| failed(MIXED, reason))?;
    let options = GenOptions {
        sizes,
        rate: Rate::Pps(MIXED_PPS),
        duration: Some(Duration::from_secs_f64(seconds)),
        ..generating(context)
    };
    let tools = [
        printing.clone(),
        Tool::weir(&context.options.weir, WEIR_FILE, "bpf", &["--write", "/dev/null"]),
        Tool::tcpdump().named(TCPDUMP_FILE),
    ];
    let mut rows = Vec::new();
    for (number, tool) in tools.iter().enumerate() {
        let mut row = Row::new(SECTION, format!("{MIXED}{}", tool.name), "% of a CPU");
        if !stopped(context.stop) {
            let found = match number {
                0 => cost_of_printing(context, bed, tool, 0, &options, &mut row),
                _ => cost_of_capture(context, bed, tool, &options, &mut row),
            };
            row_or_reason(found, &mut row)?;
            row.note = format!("{seconds} s");
            context.say(&format!("{SECTION}, {MIXED}{}, {seconds} s", tool.name));
        }
        rows.push(row);
    }
    conclude(&mut rows, &format!("{MIXED}{TCPDUMP_FILE}"));
    Ok(rows)
}

/// Measures the CPU time of a tool that writes frames to a file.
fn cost_of_capture(
    context: &Context,
    bed: &Testbed,
    tool: &Tool,
    options: &GenOptions,
    cost: &mut Row,
) -> Result<()> {
    let neighbours = context.calm();
    let capturing = tool.start(&bed.rx, context.cpus.tool)?;
    let (sent, used) = send(context, bed, tool, &capturing, options)?;
    let seconds = sent.duration.as_secs_f64();
    let got = capturing.finish()?;
    let frames = Frames::new(sent.sent, got.kept, got.drops, seconds);
    add_cost(cost, 0, Frames { cpu_seconds: used, ..frames }, neighbours.done());
    Ok(())
}

fn generating(context: &Context) -> GenOptions {
    GenOptions {
        cpus: vec![context.cpus.generator],
        engine: GenEngine::LiveFrames,
        ..GenOptions::default()
    }
}

/// Counts the frames that were printed as lines.
fn printed(context: &Context, bed: &Testbed, tool: &Tool, options: &GenOptions) -> Result<Frames> {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let folder = folder.map_err(|why| failed(tool.name, why.to_string()))?;
    let path = folder.path().join("lines");
    let script = format!("exec \"$0\" \"$@\" > {}", path.display());
    // The shell executes the tool in its own process.
    let redirected = tool.clone().behind(Path::new("/bin/sh"), &["-c", &script]);
    let capturing = redirected.start(&bed.rx, context.cpus.tool)?;
    let (sent, used) = send(context, bed, tool, &capturing, options)?;
    let said = capturing.child.interrupt()?;
    let text = fs::read(&path).map_err(|why| failed(tool.name, why.to_string()))?;
    let (kept, report) = lines_of_frames(&text);
    let drops = match report {
        Some(report) => weir_report(&[report]).map(|report| report.counted().drops),
        None => counted::tcpdump(&said).map(|counted| counted.drops),
    };
    let drops = drops.ok_or_else(|| failed(tool.name, "no counts in its output".to_owned()))?;
    let frames = Frames::new(sent.sent, kept, drops, sent.duration.as_secs_f64());
    Ok(Frames { cpu_seconds: used, ..frames })
}

/// Returns the number of lines that are frames, and the report after them. Lines with dates (`#`) are not counted.
fn lines_of_frames(text: &[u8]) -> (u64, Option<Line>) {
    let (mut frames, mut report) = (0, None);
    for line in text.split(|&byte| byte == b'\n') {
        match line.first() {
            None | Some(b'#') => {}
            Some(b'{') => {
                let text = String::from_utf8_lossy(line).into_owned();
                report = Some(Line { at: SystemTime::now(), text, data: true });
            }
            Some(_) => frames += 1,
        }
    }
    (frames, report)
}

/// Measures the time from the start of the tool to its first line. Frames are sent during the whole time.
fn first_line(context: &Context, bed: &Testbed, tool: &Tool) -> Result<Duration> {
    tool.installed()?;
    let done = AtomicBool::new(false);
    let options = MixOptions { rate_pps: FIRST_LINE_PPS, frames: None, duration: None };
    thread::scope(|scope| {
        let sender = scope.spawn(|| bed.tx.run(|| mix::run(&bed.tx.iface, &options, &done)));
        sleep(Duration::from_millis(100));
        let took = start_and_wait(context, bed, tool);
        done.store(true, Ordering::Release);
        let sent = sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent??;
        took
    })
}

fn start_and_wait(context: &Context, bed: &Testbed, tool: &Tool) -> Result<Duration> {
    // With `-l`, each line is written at once.
    let line = tool.with(&["-l"]).command_line(&bed.rx.iface, context.cpus.tool);
    let (begin, at) = (Instant::now(), SystemTime::now());
    let mut child =
        Child::start(tool.name, &bed.rx, pinned(context.cpus.tool, &line[0], &line[1..]))?;
    let first = loop {
        let first = child.lines().into_iter().find(|line| line.data && !line.text.starts_with('#'));
        if let Some(first) = first {
            break first.at;
        }
        if child.has_ended() || begin.elapsed() > FIRST_LINE_LIMIT {
            return Err(failed(tool.name, "it printed no line".to_owned()));
        }
        sleep(Duration::from_millis(5));
    };
    child.interrupt()?;
    Ok(first.duration_since(at).unwrap_or_default())
}

fn failed(what: &str, reason: String) -> Error {
    Error::Measure { what: what.to_owned(), reason }
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    format!(
        "print: {RATE_PPS} frames/s, lines to a file in memory, 64 MiB of buffer each; generator on CPU {}, the tool \
         on CPU {}; {MIXED_PPS} frames/s of the simple IMIX for {MIXED_SECONDS} s (--quick: less), once, \
         each tool alone",
        context.cpus.generator, context.cpus.tool
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let lost = |what: &str, size| {
        let frames = find(rows, SECTION, what, size).and_then(Row::frames);
        frames.map(|frames| frames.offered.saturating_sub(frames.kept) as f64)
    };
    let (size, mixed) = (Some(SIZE_MIN), [WEIR, WEIR_FILE].map(|what| format!("{MIXED}{what}")));
    let start = value_of(rows, SECTION, &format!("{START}{WEIR}"), None);
    let cost = ratio_of(rows, SECTION, WEIR, size);
    let quiet = ratio_of(rows, SECTION, &mixed[1], None);
    vec![
        Bar::new(format!("{WEIR}: CPU / {TCPDUMP_LINES}"), cost, Side::AtMost, 1.0),
        Bar::new(format!("{WEIR}: frames lost"), lost(WEIR, size), Side::AtMost, 0.0),
        Bar::new(format!("{START}{WEIR}, ms"), start, Side::AtMost, 150.0),
        Bar::new(format!("{}: frames lost", mixed[0]), lost(&mixed[0], None), Side::AtMost, 0.0),
        Bar::new(format!("{}: CPU / {TCPDUMP_FILE}", mixed[1]), quiet, Side::AtMost, 1.0),
        Bar::new(format!("{}: frames lost", mixed[1]), lost(&mixed[1], None), Side::AtMost, 0.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_frames_are_counted_and_the_report_is_none() {
        let text = b"# 2026-11-26 UTC\n12:00:00.000001 IP a\n12:00:00.000002 ARP\n{\"a\":1}\n";
        let (frames, report) = lines_of_frames(text);
        assert_eq!((frames, report.expect("a report").text.as_str()), (2, "{\"a\":1}"));
        let (frames, report) = lines_of_frames(b"12:00:00.000001 IP a\n");
        assert!(frames == 1 && report.is_none());
    }

    #[test]
    fn a_frame_lost_or_more_cpu_than_tcpdump_falls_short() {
        let row = |what: &str, percent, kept| {
            let mut row = Row::new(SECTION, what, "% of a CPU").sized(SIZE_MIN);
            let frames = Frames::new(100, kept, [].into(), 1.0);
            row.add_counted(0, percent, frames, Default::default());
            row
        };
        let mut rows = [row(WEIR, 12.0, 99), row(TCPDUMP_LINES, 10.0, 100)];
        conclude(&mut rows, TCPDUMP_LINES);
        let met: Vec<_> = bars(&rows).iter().map(|bar| bar.met).collect();
        assert_eq!(met, [Some(false), Some(false), None, None, None, None]);
        let [ours, theirs] = [WEIR_FILE, TCPDUMP_FILE].map(|what| format!("{MIXED}{what}"));
        let of_mix = |what: &str, percent| Row { size_on_wire: None, ..row(what, percent, 100) };
        let mut rows = [of_mix(&ours, 12.0), of_mix(&theirs, 10.0)];
        conclude(&mut rows, &theirs);
        let met: Vec<_> = bars(&rows).iter().map(|bar| bar.met).collect();
        assert_eq!(met[4..], [Some(false), Some(true)]);
    }
}
