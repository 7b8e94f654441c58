//! `weir lab bench` and `weir lab soak`: the product measured on this machine, beside its peers.
//!
//! | module | what it measures |
//! |---|---|
//! | `wire` | capture off a veth pair at the generator's maximum, every tool in turn |
//! | `zero_loss` | the highest rate at which each of them loses nothing |
//! | `latency` | from the generator's stamp to a consumer's hands |
//! | `iperf` | what watching costs TCP |
//! | `memory` | the ring alone |
//! | `copiers` | threads that share one RX ring |
//! | `filter` | what filters cost, in the kernel and in user space |
//! | `idle` | a capture that has nothing to do |
//! | `soak` | ledgers after a long run at full rate |
//!
//! Tools are compared only with tools measured in the same run and the same round: machines drift.

mod ahead;
mod child;
mod copiers;
mod filter;
mod idle;
mod iperf;
mod latency;
mod machine;
mod memory;
mod page;
pub mod report;
mod soak;
pub mod stats;
pub mod table;
mod tool;
mod wire;
mod zero_loss;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use ahead::Ahead;
pub use latency::Percentiles;
pub use page::page;
pub use report::Report;
pub use soak::{Check, SoakOptions, Verdict, soak};

use crate::Result;
use machine::{Machine, Neighbours};
use report::{Bar, Side};
use tool::Tool;

/// Rounds unless told otherwise: the fewest whose median shrugs off two bad ones; of a full run, one.
const ROUNDS: u32 = 5;
const ROUNDS_FULL: u32 = 3;
/// Seconds of each measurement unless told otherwise.
const SECONDS: f64 = 2.0;
const SECONDS_FULL: f64 = 1.5;
/// Seconds of each trial of the search for the rate without loss, and how often it is made.
const TRIAL: f64 = 2.0;
const SEARCHES: u32 = 1;

/// The longest that a round waits for the machine to be quiet.
const PATIENCE_ROUND: Duration = Duration::from_secs(10);
/// The longest that all of them do.
const PATIENCE: Duration = Duration::from_secs(300);

/// What to measure.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The `weir` program.
    pub weir: PathBuf,
    /// Two rounds of one second: to see that it works, not for figures.
    pub quick: bool,
    /// All frame sizes.
    pub full: bool,
    /// Rounds; 5 if not said, 3 of a full run.
    pub rounds: Option<u32>,
    /// Seconds of each measurement; 2 if not said, 1.5 of a full run.
    pub seconds: Option<f64>,
    /// Seconds of each trial of the search for the rate without loss; 2 if not said.
    pub trial: Option<f64>,
    /// How often that is searched; once if not said.
    pub searches: Option<u32>,
    /// Leave the others out.
    pub only: Option<Section>,
}

/// A part of the bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Capture off a link.
    Wire,
    /// The highest rate without loss.
    ZeroLoss,
    /// From stamp to consumer.
    Latency,
    /// TCP, watched.
    Iperf3,
    /// The ring in memory.
    Memory,
    /// Threads that share an RX ring.
    Copiers,
    /// Filters.
    Filter,
    /// Nothing to do.
    Idle,
}

impl Section {
    const ALL: [(Section, &'static str); 8] = [
        (Section::Wire, wire::SECTION),
        (Section::ZeroLoss, zero_loss::SECTION),
        (Section::Latency, latency::SECTION),
        (Section::Iperf3, iperf::SECTION),
        (Section::Memory, memory::SECTION),
        (Section::Copiers, copiers::SECTION),
        (Section::Filter, filter::SECTION),
        (Section::Idle, idle::SECTION),
    ];
}

impl FromStr for Section {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Section, String> {
        let found = Section::ALL.iter().find(|(_, name)| *name == text);
        let names = Section::ALL.map(|(_, name)| name).join(", ");
        found
            .map(|(section, _)| *section)
            .ok_or_else(|| format!("'{text}' is no part of the bench; there are {names}"))
    }
}

/// Where what runs.
#[derive(Debug, Clone, Copy)]
struct Cpus {
    /// The generator, the kernel half of every capture on a veth, and the writer in memory.
    generator: usize,
    /// The capturing tool.
    tool: usize,
    /// How many there are.
    all: usize,
}

impl Cpus {
    fn new() -> Cpus {
        let all = machine::cores();
        Cpus { generator: 0, tool: usize::from(all > 1), all }
    }

    /// For one of several readers: any CPU but the writer's, if there is another.
    fn reader(self, index: usize) -> usize {
        if self.all > 1 { 1 + index % (self.all - 1) } else { 0 }
    }
}

/// What every part needs.
struct Context<'a> {
    options: &'a Options,
    rounds: u32,
    seconds: f64,
    trial: f64,
    searches: u32,
    cpus: Cpus,
    /// How long the rest of the run may still wait for quiet moments.
    patience_ms: AtomicU64,
    begin: Instant,
    stop: &'a AtomicBool,
    talk: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Context<'a> {
    fn new(
        options: &'a Options,
        stop: &'a AtomicBool,
        talk: &'a (dyn Fn(&str) + Sync),
    ) -> Context<'a> {
        let (rounds, seconds, trial) = match (options.quick, options.full) {
            (true, _) => (2, 1.0, 0.5),
            (false, true) => (ROUNDS_FULL, SECONDS_FULL, TRIAL),
            (false, false) => (ROUNDS, SECONDS, TRIAL),
        };
        Context {
            options,
            rounds: options.rounds.unwrap_or(rounds),
            seconds: options.seconds.unwrap_or(seconds),
            trial: options.trial.unwrap_or(trial),
            searches: options.searches.unwrap_or(SEARCHES),
            cpus: Cpus::new(),
            // Who wants no figures need not wait for a quiet moment.
            patience_ms: AtomicU64::new(if options.quick {
                0
            } else {
                PATIENCE.as_millis() as u64
            }),
            begin: Instant::now(),
            stop,
            talk,
        }
    }

    /// Waits for a quiet moment, while there is patience left, and begins a round.
    fn calm(&self) -> Neighbours {
        let left = self.patience_ms.load(Ordering::Relaxed);
        let limit = Duration::from_millis(left).min(PATIENCE_ROUND);
        let took = machine::wait_for_calm(limit).as_millis() as u64;
        self.patience_ms.store(left.saturating_sub(took), Ordering::Relaxed);
        Neighbours::look()
    }

    fn say(&self, text: &str) {
        let seconds = self.begin.elapsed().as_secs();
        (self.talk)(&format!("{:>2}:{:02}  {text}", seconds / 60, seconds % 60));
    }
}

fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Acquire)
}

/// Measures; `talk` hears of the progress. Ends early, with what was measured by then, when `stop` is
/// set.
///
/// # Errors
/// If there can be no testbed, mostly for lack of root. A tool that is missing or fails is a row that
/// says so.
pub fn run(options: &Options, stop: &AtomicBool, talk: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    let context = Context::new(options, stop, talk);
    let mut machine = Machine::look();
    for tool in ["tcpdump", "dumpcap", "netsniff-ng", "dpdk-testpmd", "xdpdump", "iperf3"] {
        machine.add_tool(tool);
    }
    let wanted = |section| options.only.is_none_or(|only| only == section) && !stopped(stop);
    let mut rows = Vec::new();
    for (section, _) in Section::ALL {
        if wanted(section) {
            rows.extend(match section {
                Section::Wire => wire::measure(&context)?,
                Section::ZeroLoss => zero_loss::measure(&context)?,
                Section::Latency => latency::measure(&context)?,
                Section::Iperf3 => iperf::measure(&context)?,
                Section::Memory => memory::measure(&context)?,
                Section::Copiers => copiers::measure(&context)?,
                Section::Filter => filter::measure(&context)?,
                Section::Idle => idle::measure(&context)?,
            });
        }
    }
    machine.finish();
    let conditions = conditions(&context);
    let mut report =
        Report { conditions, rows, interrupted: stopped(stop), ..Report::new(machine) };
    report.bars = bars_of(&report, &wanted);
    report.ahead = ahead::ahead(&report);
    Ok(report)
}

fn conditions(context: &Context) -> Vec<String> {
    let Cpus { generator, tool, .. } = context.cpus;
    vec![
        format!(
            "{} interleaved rounds of {} s; ratios are medians of ratios within a round; each waits for a \
             quiet moment, up to {} s and {} s in all",
            context.rounds,
            context.seconds,
            PATIENCE_ROUND.as_secs(),
            PATIENCE.as_secs()
        ),
        format!(
            "wire: one veth pair, generator and all softirq work on CPU {generator}, the tool on CPU \
             {tool}; Mpps = frames kept / the generator's time, Gbit/s with FCS; 64 MiB of buffer each"
        ),
        format!(
            "zero-loss: RFC 2544, 26.1, by halving: trials of {} s (the RFC: 60 s), a rate that lost frames is \
             tried {} times, to 1/{:.0} of the most offered; searched {} times",
            context.trial,
            zero_loss::TRIES,
            1.0 / zero_loss::RESOLUTION,
            context.searches
        ),
        format!(
            "latency: from the stamp that the generator puts in a 64 B frame as it makes it (up to 64 before \
             the link has it) to weir's consumer on CPU {tool} looking into its copy of it; {tool_rest}",
            tool_rest = "a resting consumer pauses 50 us to 1 ms between looks, or sleeps until 2048 frames or \
                         10 ms are there; a polling one looks every 20 to 50 us"
        ),
        format!(
            "iperf3: client (and softirqs) on CPU {generator}, server and watcher on CPU {tool}; the \
             receiving end is watched, at all that TCP gives and at 10 Gbit/s"
        ),
        format!(
            "memory: writer on CPU {generator}, readers on the others; a writer half a 64 MiB ring \
             ahead of its reader waits; published every 64 frames"
        ),
        "copiers: a synthetic RX ring of 4096 slots that is always full; every frame is stamped and copied \
         into its copier's ring; the longest frames are bound by memory"
            .to_owned(),
        format!(
            "filter: as wire, 64 B, every frame a flow; Mpps = frames SENT / the generator's time, because a filter's \
             work is on the generator's CPU; \"rejects all\" is 'tcp port 80' where all is UDP; 16 feeds have 8 MiB each \
             and share the source ports evenly; block lists are mixed, put in by weir block, and meet none or a seventh of the \
             frames; user space: CPU time of a verdict on CPU {tool}"
        ),
    ]
}

/// What is asked of the results; only of parts that were wanted.
fn bars_of(report: &Report, wanted: &dyn Fn(Section) -> bool) -> Vec<Bar> {
    let ratio = |section, what, size| {
        report.row(section, what, size).and_then(|row| row.ratio).map(|ratio| ratio.median)
    };
    let value = |section, what: &str, size| {
        report.row(section, what, size).and_then(|row| row.value).map(|value| value.median)
    };
    let mut bars = Vec::new();
    if wanted(Section::Wire) {
        for (size, what, limit) in [
            (64, "weir --consume", 1.7),
            (64, "weir, passive tc", 1.1),
            (64, "weir af_packet", 1.0),
            (1518, "weir --consume", 1.5),
        ] {
            let found = ratio(wire::SECTION, what, Some(size));
            let what = format!("{size} B: {what} / tcpdump");
            bars.push(Bar::new(what, found, Side::AtLeast, limit));
        }
    }
    if wanted(Section::Wire) {
        let dpdk = value(wire::SECTION, "DPDK af_xdp, rx only", Some(64));
        let ours = value(wire::SECTION, "weir af_xdp", Some(64));
        let found = ours.zip(dpdk).map(|(ours, dpdk)| ours / dpdk);
        bars.push(Bar::new("64 B: weir af_xdp / DPDK af_xdp", found, Side::AtLeast, 1.4));
    }
    if wanted(Section::Copiers) {
        for size in [64, 512] {
            let found = ratio(copiers::SECTION, copiers::TWO, Some(size));
            let what = format!("{size} B off a synthetic RX ring: 2 copiers / 1");
            bars.push(Bar::new(what, found, Side::AtLeast, 1.6));
        }
    }
    if wanted(Section::Iperf3) {
        // A whole copy of every super-frame is some 20 % of a sender that has no CPU to spare
        // (docs/decisions/0006); the bar is held against it all the same.
        for (section, watcher) in [
            (iperf::SECTION, iperf::PASSIVE),
            (iperf::SECTION, iperf::HEADERS),
            (iperf::PACED, iperf::PASSIVE),
        ] {
            let found = ratio(section, watcher, None);
            let what = format!("{section} watched: {watcher} / bare");
            bars.push(Bar::new(what, found, Side::AtLeast, 0.95));
        }
    }
    if wanted(Section::Memory) {
        for what in [memory::COUNTS, memory::POLLS] {
            let found = value(memory::SECTION, what, Some(64));
            bars.push(Bar::new(
                format!("64 B in memory, {what}, Mpps"),
                found,
                Side::AtLeast,
                60.0,
            ));
        }
        let found = ratio(memory::READERS, memory::FOUR, None);
        let what = "writer's time a frame, four readers / none";
        bars.push(Bar::new(what, found, Side::Below, 1.1));
    }
    if wanted(Section::Filter) {
        bars.extend(filter::bars(report));
    }
    if wanted(Section::Idle) {
        let engines: Vec<_> = Tool::weirs(Path::new("weir")).iter().map(|tool| tool.name).collect();
        for (what, unit, side, limit) in [
            (idle::CPU, "%", Side::Below, 1.0),
            (idle::LATENCY_MAX, "ms", Side::Below, 20.0),
            (idle::RSS, "MiB", Side::AtMost, 64.0),
        ] {
            // The worst of the engines.
            let of = |engine: &&str| value(idle::SECTION, &format!("{what}: {engine}"), None);
            let found = engines.iter().filter_map(of).reduce(f64::max);
            bars.push(Bar::new(format!("{what}, worst engine, {unit}"), found, side, limit));
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::{Frames, MPPS, Row, conclude};

    #[test]
    fn parts_have_names() {
        assert_eq!("iperf3".parse(), Ok(Section::Iperf3));
        assert!(
            "disk"
                .parse::<Section>()
                .unwrap_err()
                .contains("wire, zero-loss, latency, iperf3, memory")
        );
    }

    #[test]
    fn readers_keep_off_the_writers_cpu_where_they_can() {
        let two = Cpus { generator: 0, tool: 1, all: 2 };
        assert_eq!([0, 1, 2, 3].map(|index| two.reader(index)), [1; 4]);
        let four = Cpus { generator: 0, tool: 1, all: 4 };
        assert_eq!([0, 1, 2, 3].map(|index| four.reader(index)), [1, 2, 3, 1]);
        assert_eq!(Cpus { generator: 0, tool: 0, all: 1 }.reader(3), 0);
    }

    #[test]
    fn bars_are_held_to_the_ratio_of_their_own_size() {
        let mut rows = Vec::new();
        for (size, ours) in [(64, 1_800_000), (1518, 1_400_000)] {
            for (what, kept) in [("weir --consume", ours), ("tcpdump", 1_000_000)] {
                let mut row = Row::new(wire::SECTION, what, MPPS).sized(size);
                row.add_frames(0, Frames::new(kept, kept, [].into(), 1.0), Default::default());
                rows.push(row);
            }
        }
        conclude(&mut rows, "tcpdump");
        let report = Report { rows, ..Report::new(Machine::look()) };
        let bars = bars_of(&report, &|section| section == Section::Wire);
        let met: Vec<_> = bars.iter().map(|bar| bar.met).collect();
        assert_eq!(met, [Some(true), None, None, Some(false), None]);
    }
}
