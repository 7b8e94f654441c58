//! Measures the recording of generated frames to disk: bytes a second that can be extracted again, beside `fio` in the
//! same rounds.
//!
//! The generator in the process offers a little more than `fio` has just written, so that the disk is the limit. At the
//! generator's full rate, most blocks would be lapped while they are being written, which would waste these writes.

use super::fio::{self, BLOCK_BYTES, FIO, RUN_BYTES, Written};
use super::place::Place;
use super::run::{self, RunResult, Said, WEIR, failed, record_bytes};
use crate::bench::bar::{Bar, Side};
use crate::bench::context::{Context, stopped};
use crate::bench::row::{Row, conclude, find, ratio_of};
use crate::bench::stats::Spread;
use crate::bench::table::grouped;
use crate::{Error, Result};

pub(in super::super) const SECTION: &str = "recorder";
const GBPS: &str = "GB/s";
/// Offered rate, relative to the rate of `fio` in the same round.
pub(super) const OFFERED: f64 = 1.05;
/// Offered rate of a row in which the disk must keep up, relative to the slower run of `fio`.
const BELOW: f64 = 0.9;
/// Name of the row in which the disk must keep up.
const WEIR_BELOW: &str = "the same, offered 0.9 x fio";
/// A capture that records nothing: the CPU time that any consumer needs.
const COUNTED: &str = "weir capture gen:, frames counted, 0.9 x fio";
/// Most bytes that one measurement writes.
const BYTES_MAX: u64 = 16_000_000_000;
/// Shortest run, except with `--quick`. At the end of a run the recorder writes the contents of its rings and completes
/// its files. That takes about 0.2 s, an eighth of a usual round.
const SECONDS_MIN: f64 = 4.0;
/// Free space required before the rate of the disk is known.
const BYTES_LEAST: u64 = 8_000_000_000;

/// Traffic of frames of one size, or of two sizes in equal numbers, with one source for each size.
pub(super) struct Trace {
    pub(super) sizes: &'static [u32],
    /// Mean size on the wire.
    pub(super) mean: u32,
    /// Target, relative to the rate of `fio`.
    asked: f64,
}

pub(super) const TRACES: [Trace; 3] = [
    Trace { sizes: &[1518], mean: 1518, asked: 0.95 },
    Trace { sizes: &[64, 1518], mean: 791, asked: 0.95 },
    Trace { sizes: &[64], mean: 64, asked: 0.9 },
];
/// Target for CPU seconds of the recorder per GB, for mean sizes from [`CPU_FROM`] on, which include the mixed traffic
/// with a mean of 791.
const CPU_ASKED: f64 = 0.15;
const CPU_FROM: u32 = 791;

impl Trace {
    /// Returns sources that together generate this many bytes of records a second.
    pub(super) fn sources(&self, bytes_per_second: f64) -> Vec<String> {
        let turn: u64 = self.sizes.iter().map(|size| record_bytes(*size)).sum();
        let pps = (bytes_per_second / turn as f64).round();
        self.sizes.iter().map(|size| format!("gen:size={size},flows=1000,rate={pps}pps")).collect()
    }

    /// Returns the bytes of the records that a run delivered.
    fn bytes_of(&self, said: &Said) -> f64 {
        let sizes = said.feeds.iter().zip(self.sizes);
        let bytes: u64 = sizes.map(|(feed, size)| feed.delivered * record_bytes(*size)).sum();
        bytes as f64
    }
}

/// Returns the length of a run.
fn seconds(context: &Context) -> f64 {
    if context.options.quick { context.seconds } else { context.seconds.max(SECONDS_MIN) }
}

/// Measures each traffic in turn with `fio`.
///
/// # Errors
/// None. A failure gives a row with the reason.
pub(in super::super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let place = match Place::new(context) {
        Ok(place) => place,
        Err(error) => {
            let mut row = Row::new(SECTION, WEIR, GBPS);
            row.absent = Some(error.to_string());
            return Ok(vec![row]);
        }
    };
    let mut all: Vec<[Row; 4]> = TRACES
        .iter()
        .map(|trace| {
            let [fio, weir, below, counted] = [FIO, WEIR, WEIR_BELOW, COUNTED]
                .map(|what| Row::new(SECTION, what, GBPS).sized(trace.mean));
            [fio.noted(place.on.clone()), weir, below, counted]
        })
        .collect();
    for round in 0..context.rounds {
        for (trace, rows) in TRACES.iter().zip(&mut all) {
            if stopped(context.stop) || rows.iter().any(|row| row.absent.is_some()) {
                continue;
            }
            match both(context, &place, trace, round, rows) {
                Ok(()) => {}
                Err(Error::Measure { what, reason }) => {
                    let at = usize::from(what != FIO);
                    context.say(&format!("{SECTION}: {what}: {reason}"));
                    rows[at].absent = Some(reason);
                }
                Err(error) => return Err(error),
            }
        }
    }
    let mut rows: Vec<Row> = all.into_iter().flatten().collect();
    conclude(&mut rows, FIO);
    Ok(rows)
}

/// Runs the recorder with more than `fio` wrote, between two runs of `fio`, and then with less than the slower run of
/// `fio` wrote; then a capture of the latter that only counts. The speed of a shared disk varies, and is highest after
/// idle time.
fn both(
    context: &Context,
    place: &Place,
    trace: &Trace,
    round: u32,
    [fio, weir, below, counted]: &mut [Row; 4],
) -> Result<()> {
    place.needs(BYTES_LEAST)?;
    let write = |block_bytes| {
        place.settle();
        let neighbours = context.calm();
        let written = fio::write(place.path(), block_bytes, seconds(context), BYTES_MAX)?;
        Ok::<_, Error>((written, neighbours.done()))
    };
    // The recorder writes one block of its ring or several at a time. A disk may prefer either size.
    let [short, long] = [write(BLOCK_BYTES)?, write(RUN_BYTES)?];
    let is_long = long.0.bytes_per_second > short.0.bytes_per_second;
    let (before, disturbance) = if is_long { long } else { short };
    recorded(context, place, trace, round, (&before, OFFERED), weir)?;
    let (after, _) = write(if is_long { RUN_BYTES } else { BLOCK_BYTES })?;
    let both = [before, after].map(|written| written.bytes_per_second);
    fio.add(round, (both[0] + both[1]) / 2e9, disturbance);
    let slower = if both[0] < both[1] { before } else { after };
    recorded(context, place, trace, round, (&slower, BELOW), below)?;
    count(context, trace, round, slower.bytes_per_second * BELOW, counted)
}

/// Captures `offered` bytes a second and only counts the frames.
fn count(context: &Context, trace: &Trace, round: u32, offered: f64, row: &mut Row) -> Result<()> {
    let neighbours = context.calm();
    let sources = trace.sources(offered);
    let RunResult { said, cpu_seconds } =
        run::run(&context.options.weir, &sources, None, seconds(context), context.stop)?;
    let disturbance = neighbours.done();
    let mut frames = said.frames("count", None, said.duration_s);
    frames.cpu_seconds = Some(cpu_seconds);
    let rate = trace.bytes_of(&said) / said.duration_s / 1e9;
    row.add_counted(round, rate, frames, disturbance);
    Ok(())
}

/// Runs the recorder once, at this share of the rate of `fio`.
fn recorded(
    context: &Context,
    place: &Place,
    trace: &Trace,
    round: u32,
    (written, share): (&Written, f64),
    row: &mut Row,
) -> Result<()> {
    let offered = written.bytes_per_second * share;
    let seconds = seconds(context).min(BYTES_MAX as f64 / offered);
    place.needs((offered * seconds) as u64)?;
    place.settle();
    let folder = place.folder()?;
    let neighbours = context.calm();
    let program = &context.options.weir;
    let RunResult { said, cpu_seconds } =
        run::run(program, &trace.sources(offered), Some(folder.path()), seconds, context.stop)?;
    let disturbance = neighbours.done();
    let bytes = trace.bytes_of(&said);
    let mut frames = said.frames("record", None, said.duration_s);
    if share > 1.0 {
        let found = run::extractable(program, folder.path())?;
        if found != frames.kept {
            let [found, said] = [found, frames.kept].map(grouped);
            return Err(failed(format!("{found} frames can be extracted, {said} were recorded")));
        }
    }
    frames.cpu_seconds = Some(cpu_seconds);
    let rate = bytes / said.duration_s / 1e9;
    context.say(&format!(
        "{SECTION}, {} B, round {}: fio {:.2} GB/s, weir {rate:.2} of {:.2}, {:.3} CPU s/GB",
        trace.mean,
        round + 1,
        written.bytes_per_second / 1e9,
        offered / 1e9,
        cpu_seconds / (bytes / 1e9),
    ));
    row.note = format!(
        "last round: {:.2} GB of records, {:.2} GB written, {} blocks copied first, {} torn; fio itself {:.3} CPU s/GB",
        bytes / 1e9,
        said.recorder.bytes as f64 / 1e9,
        grouped(said.recorder.copied_blocks),
        said.recorder.torn_blocks,
        written.cpu_seconds_per_gb,
    );
    row.add_counted(round, rate, frames, disturbance);
    Ok(())
}

/// Describes how this part is measured.
pub(in super::super) fn condition(context: &Context) -> String {
    format!(
        "recorder: fio with blocks of 1 MiB and then of 4 MiB, of which the faster counts, weir capture gen: --write \
         DIR/ --ring-size 256MiB, fio and weir again in the same directory, {} s each, new files, on CPUs of their \
         own choice, after the disk has been idle for half a second; GB/s = bytes of pcapng records, of the frames \
         that the report has as delivered, until the last of them is written, index on (of the first round, weir \
         extract must give as many frames); offered: {OFFERED} of what fio wrote just before, and then {BELOW} of the \
         slower of both, and as much to a capture that only counts; fio's figure is the mean of both; \
         791 B are two sources, 64 and 1518 B in equal numbers; CPU time is that of all threads of the process but \
         weir-source, which makes the frames",
        seconds(context)
    )
}

/// Returns the targets of this part.
pub(in super::super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for trace in &TRACES {
        let size = Some(trace.mean);
        let ratio = ratio_of(rows, SECTION, WEIR, size);
        let what = format!("{} B: {WEIR} / fio, bytes that can be extracted", trace.mean);
        bars.push(Bar::new(what, ratio, Side::AtLeast, trace.asked));
    }
    for trace in TRACES.iter().filter(|trace| trace.mean >= CPU_FROM) {
        for (row, when) in [(WEIR, "the disk at its limit"), (WEIR_BELOW, "at 0.9 x fio")] {
            let cpu_of = |what| find(rows, SECTION, what, Some(trace.mean)).and_then(cpu_per_gb);
            let beyond = cpu_of(row).zip(cpu_of(COUNTED)).map(|(all, counted)| all - counted);
            let what =
                format!("{} B, {when}: CPU s a GB, beyond a capture that counts", trace.mean);
            bars.push(Bar::new(what, beyond, Side::AtMost, CPU_ASKED));
        }
    }
    let below = rows.iter().filter(|row| row.section == SECTION && row.what == WEIR_BELOW);
    let lost = below.filter_map(Row::frames).map(|frames| frames.offered.abs_diff(frames.kept));
    let lost = lost.reduce(|all, more| all + more).map(|frames| frames as f64);
    bars.push(Bar::new("at 0.9 x fio: frames lost", lost, Side::AtMost, 0.0));
    let ours = rows.iter().filter(|row| row.section == SECTION && row.what != FIO);
    let unnamed = ours.filter_map(Row::frames).map(|frames| {
        frames.unaccounted.unsigned_abs() + frames.drops.get("store").copied().unwrap_or(0)
    });
    let unnamed = unnamed.reduce(|all, more| all + more).map(|frames| frames as f64);
    bars.push(Bar::new("frames lost in the store, or nowhere", unnamed, Side::AtMost, 0.0));
    bars
}

/// Returns the median over the rounds of CPU seconds per GB.
fn cpu_per_gb(row: &Row) -> Option<f64> {
    let of = |round: &crate::bench::row::Round| {
        let frames = round.frames.as_ref()?;
        Some(frames.cpu_seconds? / (round.value * frames.seconds))
    };
    Some(Spread::of(row.rounds.iter().filter_map(of))?.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::row::Frames;

    #[test]
    fn sources_make_the_bytes_that_are_offered() {
        let [large, mixed, _] = &TRACES;
        assert_eq!(large.sources(1548e6), ["gen:size=1518,flows=1000,rate=1000000pps"]);
        let both =
            ["gen:size=64,flows=1000,rate=1000000pps", "gen:size=1518,flows=1000,rate=1000000pps"];
        assert_eq!(mixed.sources(1640e6), both);
        assert_eq!(mixed.sizes.iter().sum::<u32>() / 2, mixed.mean);
    }

    #[test]
    fn a_rate_is_held_against_fio_and_cpu_time_against_the_bytes() {
        let mut fio = Row::new(SECTION, FIO, GBPS).sized(1518);
        fio.add(0, 2.0, Default::default());
        let mut weir = Row::new(SECTION, WEIR, GBPS).sized(1518);
        let drops = [("store".to_owned(), 0), ("lapped".to_owned(), 10)].into();
        let frames = Frames { cpu_seconds: Some(0.5), ..Frames::new(100, 90, drops, 2.0) };
        weir.add_counted(0, 1.96, frames, Default::default());
        let mut below = Row::new(SECTION, WEIR_BELOW, GBPS).sized(1518);
        let frames = Frames {
            cpu_seconds: Some(0.9),
            ..Frames::new(100, 99, [("lapped".to_owned(), 1)].into(), 2.0)
        };
        below.add_counted(0, 1.8, frames, Default::default());
        let mut counted = Row::new(SECTION, COUNTED, GBPS).sized(1518);
        let frames = Frames { cpu_seconds: Some(0.1), ..Frames::new(100, 100, [].into(), 2.0) };
        counted.add_counted(0, 1.0, frames, Default::default());
        let mut rows = [fio, weir, below, counted];
        conclude(&mut rows, FIO);
        let bars = bars(&rows);
        let met: Vec<_> = bars.iter().map(|bar| bar.met).collect();
        let cpu = [Some(true), Some(false), None, None];
        assert_eq!(met[..3], [Some(true), None, None]);
        assert_eq!(met[3..7], cpu);
        assert_eq!(
            met[7..],
            [Some(false), Some(true)],
            "what is lost below the limit, and what nobody names"
        );
        assert!((bars[3].value.unwrap() - (0.1276 - 0.05)).abs() < 1e-3);
    }
}
