//! The rounds of the measurement: disk only, capture only, both. Each is measured once per round, so that a drift of
//! the machine affects all.

use std::sync::atomic::AtomicBool;

use super::super::disk::{OFFERED, TRACES, Trace};
use super::super::fio::{self, Written};
use super::super::place::{self, Place};
use super::super::run::{self, RunResult, record_bytes};
use super::computed::{Drive, LINKS_GBPS};
use super::guest::InGuest;
use super::report::{BOTH, CAPTURE, DISK, Sizing};
use super::{Options, raw};
use crate::Result;
use crate::bench::context::stopped;
use crate::bench::machine::{Disturbance, Machine, Neighbours};
use crate::bench::row::Row;
use crate::bench::stats::Spread;

const GBPS: &str = "GB/s";
const MPPS: &str = "Mpps";
/// The file for the disk alone is as long as a drive of this rate writes in one measurement. At its end, writing
/// continues at the beginning.
const FILE_BYTES_PER_SECOND: f64 = 4e9;
const FILE_BYTES_LEAST: u64 = 256_000_000;
const FILE_BYTES_MAX: u64 = 16_000_000_000;
/// Attempts to find a rate at which the counting consumer loses nothing. Each attempt offers this
/// share of the rate that the previous one kept.
const TRIES: u32 = 6;
const NEXT_TRY: f64 = 0.95;

/// The rows, in the order of the report.
struct Rows {
    raw: Vec<Row>,
    fio: Vec<Row>,
    capture: Vec<Row>,
    both: Vec<Row>,
}

/// Measures, and computes the needs of links. A stop ends the measurement, with the rounds so far.
///
/// # Errors
/// `Error::Measure` if the directory is missing, cannot be written to, is in memory or has too
/// little space.
pub fn run(options: &Options, stop: &AtomicBool, talk: &dyn Fn(&str)) -> Result<Sizing> {
    let place = Place::below(&options.directory).map_err(|reason| {
        let shown = options.directory.display();
        place::failed(format!(
            "{shown}: {reason}; name an existing directory on a disk that you may write to"
        ))
    })?;
    let file_bytes = file_bytes(options.seconds);
    place.needs(file_bytes)?;
    let mut machine = Machine::look(&options.weir);
    machine.add_tool("fio");
    let has_fio = machine.tools.iter().any(|tool| tool.starts_with("fio"));
    let mut rows = Rows::new(options, has_fio);
    let mut guest = InGuest::start(options, &place, file_bytes, machine.cores, stop);
    for round in 0..options.rounds {
        if stopped(stop) {
            break;
        }
        match one_round(options, &place, (round, file_bytes), &mut rows, has_fio, stop) {
            Ok(()) => {}
            Err(error) if round == 0 => return Err(error),
            Err(error) => {
                talk(&format!("round {}: {error}; the rounds before count", round + 1));
                break;
            }
        }
        guest.round(options, round, stop);
        talk(&format!("round {} of {}", round + 1, options.rounds));
    }
    machine.finish();
    let drives = rows.drives();
    let needs = drives.iter().flat_map(|drive| LINKS_GBPS.map(|link| drive.need(link)));
    let links = drives.iter().flat_map(|one| options.drives.iter().map(|count| one.link(*count)));
    let about = guest.about.clone();
    let mut rows = rows.all();
    rows.extend(guest.rows(&rows));
    rows.iter_mut().for_each(summarize);
    Ok(Sizing {
        machine,
        file_system: place.on.clone(),
        guest: about,
        seconds: options.seconds,
        interrupted: stopped(stop),
        needs: needs.flatten().collect(),
        links: links.collect(),
        rows,
    })
}

fn summarize(row: &mut Row) {
    row.value = Spread::of(row.rounds.iter().map(|round| round.value));
}

/// Returns the length of the file for the disk alone, in bytes.
fn file_bytes(seconds: f64) -> u64 {
    ((seconds * FILE_BYTES_PER_SECOND) as u64).clamp(FILE_BYTES_LEAST, FILE_BYTES_MAX)
}

fn one_round(
    options: &Options,
    place: &Place,
    (round, file_bytes): (u32, u64),
    rows: &mut Rows,
    has_fio: bool,
    stop: &AtomicBool,
) -> Result<()> {
    let mut best: f64 = 0.0;
    for (at, &block) in options.block_bytes.iter().enumerate() {
        if stopped(stop) {
            return Ok(());
        }
        place.needs(file_bytes)?;
        place.settle();
        let neighbours = Neighbours::look();
        let result = raw::write(place.path(), block, options.seconds, file_bytes, stop);
        let disturbance = neighbours.done();
        if stopped(stop) {
            return Ok(());
        }
        let (written, note) = result?;
        best = best.max(written.bytes_per_second);
        add_written(&mut rows.raw[at], round, written, disturbance);
        if let Some(note) = note {
            rows.raw[at].note += &format!("; {note}");
        }
        if has_fio {
            place.settle();
            let neighbours = Neighbours::look();
            let written = fio::write(place.path(), block, options.seconds, file_bytes);
            let disturbance = neighbours.done();
            if stopped(stop) {
                return Ok(());
            }
            add_written(&mut rows.fio[at], round, written?, disturbance);
        }
    }
    for (at, trace) in TRACES.iter().enumerate() {
        capture(options, trace, round, &mut rows.capture[at], stop)?;
        if !stopped(stop) {
            both(options, place, trace, (round, best), &mut rows.both[at], stop)?;
        }
    }
    Ok(())
}

fn add_written(row: &mut Row, round: u32, written: Written, disturbance: Disturbance) {
    row.add(round, written.bytes_per_second / 1e9, disturbance);
    row.note = format!("last round: {:.3} CPU s/GB", written.cpu_seconds_per_gb);
}

/// Measures the capture to a consumer that counts frames: first at the highest rate of the
/// generator, then at lower rates until none is lost.
fn capture(
    options: &Options,
    trace: &Trace,
    round: u32,
    row: &mut Row,
    stop: &AtomicBool,
) -> Result<()> {
    let mut sources = trace.unlimited();
    for attempt in 1..=TRIES {
        let neighbours = Neighbours::look();
        let ran = run::run(&options.weir, &sources, None, options.seconds, stop);
        let disturbance = neighbours.done();
        if stopped(stop) {
            return Ok(());
        }
        let said = ran?.said;
        let frames = said.frames("count", None, said.duration_s);
        if frames.is_whole() {
            row.note = format!("last round: none lost at try {attempt}");
            row.add_frames(round, frames, disturbance);
            return Ok(());
        }
        let kept_bytes = frames.kept_mpps() * 1e6 * trace.record_bytes();
        sources = trace.sources(kept_bytes * NEXT_TRY);
    }
    row.note = format!("round {}: frames were lost at each of {TRIES} rates: no value", round + 1);
    Ok(())
}

/// Measures the recorder, to which a little more is offered than the disk alone wrote in this round.
fn both(
    options: &Options,
    place: &Place,
    trace: &Trace,
    (round, disk): (u32, f64),
    row: &mut Row,
    stop: &AtomicBool,
) -> Result<()> {
    let offered = disk * OFFERED;
    let seconds = options.seconds.min(FILE_BYTES_MAX as f64 / offered);
    place.needs((offered * seconds) as u64)?;
    place.settle();
    let folder = place.folder()?;
    let neighbours = Neighbours::look();
    let sources = trace.sources(offered);
    let ran = run::run(&options.weir, &sources, Some(folder.path()), seconds, stop);
    let disturbance = neighbours.done();
    if stopped(stop) {
        return Ok(());
    }
    let RunResult { said, cpu_seconds } = ran?;
    let sizes = said.feeds.iter().zip(trace.sizes);
    let bytes: u64 = sizes.map(|(feed, size)| feed.delivered * record_bytes(*size)).sum();
    let mut frames = said.frames("record", None, said.duration_s);
    frames.cpu_seconds = Some(cpu_seconds);
    let lost = 100.0 * (1.0 - frames.kept as f64 / frames.offered.max(1) as f64);
    row.note = format!(
        "last round: {:.2} GB/s offered, {lost:.1} % lost, {:.3} CPU s/GB",
        frames.offered_pps() * trace.record_bytes() / 1e9,
        cpu_seconds / (bytes as f64 / 1e9),
    );
    row.add_counted(round, bytes as f64 / said.duration_s / 1e9, frames, disturbance);
    Ok(())
}

impl Trace {
    /// Returns the mean size of a record, in bytes.
    fn record_bytes(&self) -> f64 {
        let all: u64 = self.sizes.iter().map(|size| record_bytes(*size)).sum();
        all as f64 / self.sizes.len() as f64
    }

    /// Returns sources without a rate limit.
    fn unlimited(&self) -> Vec<String> {
        self.sizes.iter().map(|size| format!("gen:size={size},flows=1000")).collect()
    }
}

impl Rows {
    fn new(options: &Options, has_fio: bool) -> Rows {
        let by_block = |who: &str| {
            let name = |bytes: &u64| format!("{who}, {} KiB a write", bytes >> 10);
            options.block_bytes.iter().map(|bytes| Row::new(DISK, name(bytes), GBPS)).collect()
        };
        let by_trace = |section, what: &str, unit| {
            TRACES.iter().map(|trace| Row::new(section, what, unit).sized(trace.mean)).collect()
        };
        let mut fio: Vec<Row> = by_block("fio");
        if !has_fio {
            fio.truncate(1);
            fio[0].absent = Some("fio is not installed".to_owned());
        }
        Rows {
            raw: by_block("weir-disk"),
            fio,
            capture: by_trace(CAPTURE, "gen: to a counting consumer, none lost", MPPS),
            both: by_trace(BOTH, "weir capture gen: --write DIR/", GBPS),
        }
    }

    /// Returns the figures of this drive, for each traffic that has been measured.
    fn drives(&self) -> Vec<Drive> {
        let of = |(row, trace): (&Row, &Trace)| {
            let cpu = |round: &crate::bench::row::Round| {
                let frames = round.frames.as_ref()?;
                let cpu = frames.cpu_seconds? / (round.value * frames.seconds);
                cpu.is_finite().then_some(cpu)
            };
            Some(Drive {
                size_on_wire: trace.mean,
                record_bytes: trace.record_bytes(),
                bytes_per_second: Spread::of(row.rounds.iter().map(|round| round.value))?.median
                    * 1e9,
                cpu_seconds_per_gb: Spread::of(row.rounds.iter().filter_map(cpu))?.median,
            })
        };
        self.both.iter().zip(&TRACES).filter_map(of).collect()
    }

    fn all(self) -> Vec<Row> {
        let rows = [self.raw, self.fio, self.capture, self.both];
        rows.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_bounded_whatever_time_is_asked_for() {
        assert_eq!(file_bytes(0.01), FILE_BYTES_LEAST);
        assert_eq!(file_bytes(2.0), 8_000_000_000);
        assert_eq!(file_bytes(1e9), FILE_BYTES_MAX);
    }

    #[test]
    fn a_mixed_trace_has_the_mean_of_its_records() {
        assert!((TRACES[1].record_bytes() - 820.0).abs() < 1e-9);
        assert_eq!(TRACES[2].unlimited(), ["gen:size=64,flows=1000"]);
    }
}
