//! What a capture costs when nothing comes, and how soon a single frame is seen.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::bar::{Bar, Side};
use super::child::cpu_ns;
use super::context::{Context, stopped};
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
/// Frames sent one by one.
const SINGLES: u64 = 50;
/// Some 50 ms apart, and no multiple of anybody's sleep.
const SINGLES_PPS: f64 = 19.3;
/// After a run at full rate, everything that a capture ever touches has been touched.
const WARM: Duration = Duration::from_secs(1);

/// Measures each live engine once: a quiet process needs no rounds.
///
/// # Errors
/// Only if there can be no testbed: an engine that fails is a row that says so.
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
    let smaps = fs::read_to_string(format!("/proc/{id}/smaps"));
    let rss_kib = rss_beyond_rings(&smaps.map_err(|_| unreadable("smaps"))?);
    capturing.finish_weir()?;

    let latencies = latencies(context, bed, tool)?;
    let ms = |latency: Duration| latency.as_secs_f64() * 1e3;
    let (Some(&max), middle) = (latencies.last(), latencies.len() / 2) else {
        let reason = "none of the single frames was printed".to_owned();
        return Err(Error::Measure { what: tool.name.to_owned(), reason });
    };
    Ok(Quiet {
        cpu_percent,
        rss_mib: rss_kib as f64 / 1024.0,
        median_ms: ms(latencies[middle]),
        max_ms: ms(max),
        singles: latencies.len(),
    })
}

/// Times from a frame's stamp, taken in the kernel as it arrives, to its printed line here; sorted. The
/// printing consumer merges rings with no slack, so that what is timed is the capture's own delay.
fn latencies(context: &Context, bed: &Testbed, tool: &Tool) -> Result<Vec<Duration>> {
    let printing = tool.with(&["--print", "--merge-slack", "0ms"]);
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

const DAY: Duration = Duration::from_secs(86_400);

/// `12:34:56.123456789 ...`: the time of day.
fn stamp(line: &str) -> Option<Duration> {
    let (clock, fraction) = line.split_whitespace().next()?.split_once('.')?;
    let mut parts = clock.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    if fraction.len() != 9 || parts.next().is_some() {
        return None;
    }
    Some(Duration::new(hour * 3600 + minute * 60 + second, fraction.parse().ok()?))
}

fn of_day(time: SystemTime) -> Duration {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::new(since.as_secs() % DAY.as_secs(), since.subsec_nanos())
}

/// From one time of day to a later one, over midnight if need be.
fn since(from: Duration, to: Duration) -> Duration {
    if to >= from { to - from } else { to + DAY - from }
}

/// KiB resident in mappings that are no ring: rings are BPF arrays, memfds and packet sockets.
fn rss_beyond_rings(smaps: &str) -> u64 {
    const RINGS: [&str; 3] = ["bpf-map", "/memfd:weir", "socket:["];
    let (mut total, mut is_ring) = (0, false);
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kib = rest.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
            total += if is_ring { 0 } else { kib.unwrap_or(0) };
        } else if line.split_whitespace().next().is_some_and(|first| !first.ends_with(':')) {
            is_ring = RINGS.iter().any(|ring| line.contains(ring));
        }
    }
    total
}

/// What is asked of it, of the worst of the engines.
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
    fn rings_are_left_out_of_the_memory() {
        let smaps = "55d0-55d1 r-xp 00000000 fe:00 12 /usr/bin/weir\nSize: 2000 kB\nRss:  1500 kB\n\
            VmFlags: rd ex mr\n\
            7f00-7f01 r--s 00000000 00:0e 9 anon_inode:bpf-map\nSize: 33792 kB\nRss: 33792 kB\n\
            7f02-7f03 rw-s 00000000 00:01 2 /memfd:weir-ring (deleted)\nRss: 100 kB\n\
            7f04-7f05 rw-p 00000000 00:00 0 \nRss: 30 kB\n";
        assert_eq!(rss_beyond_rings(smaps), 1530);
    }

    #[test]
    fn stamps_are_read_and_midnight_is_no_leap() {
        let at = stamp("23:59:59.999000000 wrx0 in ARP").unwrap();
        assert_eq!(at, Duration::new(86_399, 999_000_000));
        assert_eq!(since(at, Duration::from_millis(1)), Duration::from_millis(2));
        assert_eq!(of_day(UNIX_EPOCH + DAY + Duration::from_secs(5)), Duration::from_secs(5));
        for bad in ["", "weir: x", "1:2.123456789", "12:00:00.5 x", "12:00:00:00.123456789"] {
            assert_eq!(stamp(bad), None, "{bad}");
        }
    }

    #[test]
    fn this_process_has_used_its_cpu() {
        assert!(cpu_ns(std::process::id()).is_some_and(|ns| ns > 0));
    }
}
