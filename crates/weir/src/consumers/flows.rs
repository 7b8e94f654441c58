//! `weir flows`: frames become flows.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use serde::Serialize;
use thiserror::Error;
use weir_consumer::{ConsumerError, Count, Run, Sink, Stalled};
use weir_export::ExportError;
use weir_flow::{Counters, FlowConfig, FlowError, FlowRecord, FlowTable, Octets, Seen};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET, Statistics};
use weir_frame::record::Record;
use weir_monitor::limits::PART_FLOWS;
use weir_monitor::{Teller, Told};

use super::{Input, Named, RunSink};
use crate::cli::FlowMonitorArgs;
use crate::flows::outlets::{ExportReport, OutletPlan, Outlets};
use crate::flows::watch::Watch;

/// Flows that a table has, if not said.
const FLOWS_MAX: u64 = 1_000_000;
/// Frames that are taken over together.
const RUN_FRAMES: u64 = 256;
/// Lines of the table that are looked through for one part of a view, where they are empty.
const PART_LINES: usize = 4096;
/// Parts of a view at a time, where no frames come: some milliseconds.
const PARTS_AT_REST: usize = 32;

/// Why flows cannot be printed.
#[derive(Debug, Error)]
enum FlowsError {
    #[error("standard output: its reader has gone")]
    ReaderGone,
    #[error("standard output: its reader takes nothing any more")]
    ReaderStalled,
}

/// What came of the flows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowsReport {
    /// Records: of flows that ended, and of each active time-out.
    pub records: u64,
    /// Flows that began.
    pub began: u64,
    /// Flows that ended early, so that another could begin.
    pub evicted: u64,
    /// Frames that belong to no flow, by reason.
    pub not_flows: NotFlowsReport,
    /// Later fragments whose ports are known, and those that are not: they are flows without ports.
    pub fragments_attributed: u64,
    pub fragments_unattributed: u64,
    /// Steps of the frames' clock.
    pub clock_steps_ahead: u64,
    pub clock_steps_back: u64,
    /// Where records went.
    pub exports: Vec<ExportReport>,
    /// Those with most bytes, as a table of text.
    #[serde(skip)]
    pub table: String,
}

/// Frames that belong to no flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NotFlowsReport {
    pub arp: u64,
    pub other_protocol: u64,
    pub cut_off: u64,
    pub malformed: u64,
    pub too_many_vlans: u64,
    /// Of interfaces that have no Ethernet frames.
    pub other_link_type: u64,
}

impl FlowsReport {
    /// Of a table that has ended, and what became of its records.
    pub fn new(
        counters: &Counters,
        other_link_type: u64,
        exports: Vec<ExportReport>,
        out: &Outlets,
    ) -> FlowsReport {
        let Counters { began, evicted, not_flows, .. } = *counters;
        FlowsReport {
            records: out.records(),
            began,
            evicted,
            not_flows: NotFlowsReport {
                arp: not_flows.arp,
                other_protocol: not_flows.other_protocol,
                cut_off: not_flows.cut_off,
                malformed: not_flows.malformed,
                too_many_vlans: not_flows.too_many_vlans,
                other_link_type,
            },
            fragments_attributed: counters.fragments_attributed,
            fragments_unattributed: counters.fragments_unattributed,
            clock_steps_ahead: counters.clock_steps_ahead,
            clock_steps_back: counters.clock_steps_back,
            exports,
            table: out.table(),
        }
    }
}

/// Makes the consumer.
pub(super) fn open(input: &Input<'_>, args: &FlowMonitorArgs) -> Result<Named> {
    let timeout = |time: Duration| (!time.is_zero()).then_some(time);
    let config = FlowConfig {
        flows_max: args.flows_max.unwrap_or(FLOWS_MAX),
        idle_timeout: timeout(args.idle_timeout),
        active_timeout: timeout(args.active_timeout),
        biflow: args.biflow,
        by_vlan: args.vlan,
        octets: Octets::Ip,
        ..FlowConfig::default()
    };
    let is_live = input.plan.is_live();
    let table = FlowTable::new(config).map_err(named)?;
    let watch = input.plan.watch.as_ref();
    let outlets = OutletPlan { args, json: input.plan.json, is_live, stop: &input.stop, watch };
    let sink = Flows {
        table,
        is_ethernet: Vec::new(),
        out: Outlets::open(&outlets)?,
        reports: Vec::new(),
        other_link_type: 0,
        kept: Count::default(),
        is_live,
        teller: watch.and_then(Watch::take_teller),
    };
    Ok(Named::new("flows", input.ordered(sink)))
}

/// The error with the flag that it is about.
fn named(error: FlowError) -> anyhow::Error {
    match error {
        FlowError::Flows(_) => anyhow!("--flows-max: {error}"),
        FlowError::Timeout(_) => anyhow!("--idle-timeout, --active-timeout: {error} (0s)"),
        FlowError::NoMemory(_) => anyhow!("--flows-max: {error}"),
    }
}

/// Counts frames by flow.
struct Flows {
    table: FlowTable,
    /// Interfaces, by number.
    is_ethernet: Vec<bool>,
    out: Outlets,
    /// Of exports that have ended.
    reports: Vec<ExportReport>,
    other_link_type: u64,
    kept: Count,
    /// Time goes on where no frames come.
    is_live: bool,
    /// Tells those who look on.
    teller: Option<Teller>,
}

/// Why the lines on standard output have ended.
fn failed(failure: ExportError) -> ConsumerError {
    if Stalled::is_why(&failure.source) {
        return ConsumerError::ReaderStalled(FlowsError::ReaderStalled.into());
    }
    if failure.source.kind() == io::ErrorKind::BrokenPipe {
        return ConsumerError::ReaderGone(FlowsError::ReaderGone.into());
    }
    ConsumerError::Output(failure.into())
}

impl Flows {
    fn take_all<'a>(&mut self, records: impl Iterator<Item = Record<'a>>) {
        let Flows { table, is_ethernet, out, other_link_type, kept, .. } = self;
        let seen = records.filter_map(|record| {
            let meta = &record.meta;
            *kept += Count::one(meta.wire_len);
            if !is_ethernet.get(meta.interface_id as usize).copied().unwrap_or(false) {
                *other_link_type += 1;
                return None;
            }
            Some(Seen::from(record))
        });
        table.add(seen, &mut |record| out.take(&record));
    }

    /// Tells those who look on, so many parts at most.
    fn tell(&mut self, parts: usize) {
        let Flows { table, out, kept, teller: Some(teller), .. } = self else { return };
        let told = || Told {
            counters: table.counters(),
            capacity: table.capacity(),
            frames: kept.frames,
            wire_bytes: Some(kept.wire_bytes),
            records: out.records(),
            ended: out.protocols().clone(),
            origins: out.origins().clone(),
            exports: out.views(),
        };
        for _ in 0..parts {
            if !teller.go_on(table.lines(), |from| part_of(table, from), told) {
                return;
            }
        }
    }

    /// Ends all flows, and the exports.
    fn end_all(&mut self) -> Result<(), ConsumerError> {
        let Flows { table, out, .. } = self;
        out.wait_for_exports();
        table.finish(&mut |record| out.take(&record));
        let (reports, failure) = self.out.finish();
        self.reports.extend(reports);
        failure.map_or(Ok(()), |failure| Err(failed(failure)))
    }
}

/// Flows of the table from this line on, and the line behind them.
fn part_of(table: &FlowTable, from: usize) -> (Vec<FlowRecord>, usize) {
    let (mut flows, mut at) = (Vec::new(), from);
    let end = table.lines().min(from + PART_LINES);
    while at < end && flows.len() < PART_FLOWS {
        let to = end.min(at + 64);
        flows.extend(table.live_part(at..to));
        at = to;
    }
    (flows, at)
}

impl Sink for Flows {
    fn describe(
        &mut self,
        _number: u32,
        interface: &Interface,
        _label: &str,
    ) -> Result<(), ConsumerError> {
        self.is_ethernet.push(interface.link_type == LINKTYPE_ETHERNET);
        self.out.describe(interface);
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        self.take_all(std::iter::once(*record));
        Ok(())
    }

    fn run_frames_max(&self) -> u64 {
        RUN_FRAMES
    }

    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        self.take_all(run.records());
        Ok(())
    }

    fn end_turn(&mut self) -> Result<(), ConsumerError> {
        self.out.flush();
        self.tell(1);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        if self.is_live
            && let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH)
        {
            let Flows { table, out, .. } = self;
            table.advance(now.as_nanos() as u64, &mut |record| out.take(&record));
        }
        self.out.flush();
        self.tell(PARTS_AT_REST);
        if self.out.has_lost_stdout() { self.end_all() } else { Ok(()) }
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        self.end_all()
    }

    fn kept(&self) -> Count {
        self.kept
    }
}

impl RunSink for Flows {
    fn end(&mut self) {
        // The run has a failure to tell of already.
        let _ = self.end_all();
    }

    fn flows(&self) -> Option<FlowsReport> {
        let reports = self.reports.clone();
        let counters = self.table.counters();
        Some(FlowsReport::new(&counters, self.other_link_type, reports, &self.out))
    }
}
