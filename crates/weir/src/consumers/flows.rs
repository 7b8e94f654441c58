//! `weir flows`: frames become flows, and flows that have ended become lines and a table.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use thiserror::Error;
use weir_consumer::{ConsumerError, Count, Run, Sink, Stalled};
use weir_flow::{Counters, FlowConfig, FlowError, FlowRecord, FlowTable, Octets, Seen};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET, Statistics};
use weir_frame::record::Record;

use super::{Input, Named, RunSink};
use crate::cli::FlowMonitorArgs;
use crate::flows::json;
use crate::flows::lines::{Lines, WhenFull};
use crate::flows::text;
use crate::flows::top::Top;
use crate::interruptible_writer::InterruptibleWriter;

/// Frames that are taken over together.
const RUN_FRAMES: u64 = 256;

/// Why flows cannot be printed.
#[derive(Debug, Error)]
enum FlowsError {
    #[error("standard output: its reader has gone")]
    ReaderGone,
    #[error("standard output: its reader takes nothing any more")]
    ReaderStalled,
    #[error("standard output: flows cannot be printed; free space, or print elsewhere")]
    Write(#[source] io::Error),
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
    /// Records that `--json` could not print, because the reader was too slow or had gone.
    pub unwritten: u64,
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

/// Makes the consumer.
pub(super) fn open(input: &Input<'_>, args: &FlowMonitorArgs) -> Result<Named> {
    let timeout = |time: Duration| (!time.is_zero()).then_some(time);
    let config = FlowConfig {
        flows_max: args.flows_max,
        idle_timeout: timeout(args.idle_timeout),
        active_timeout: timeout(args.active_timeout),
        biflow: args.biflow,
        by_vlan: args.vlan,
        octets: Octets::Ip,
        ..FlowConfig::default()
    };
    let is_live = input.plan.is_live();
    let lines = match input.plan.json {
        true => {
            let out = InterruptibleWriter::stdout(input.stop.clone()).context("standard output")?;
            // A trace waits for its reader, and a link does not.
            let when_full = if is_live { WhenFull::Drop } else { WhenFull::Wait };
            Some(Lines::new(out, when_full).context("starting a thread")?)
        }
        false => None,
    };
    let sink = Flows {
        table: FlowTable::new(config).map_err(named)?,
        interfaces: Vec::new(),
        out: Output {
            top: Top::new(args.top),
            lines,
            names: Vec::new(),
            is_biflow: args.biflow,
            records: 0,
        },
        other_link_type: 0,
        kept: Count::default(),
        is_live,
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
    /// By number: whether its frames are Ethernet's.
    interfaces: Vec<bool>,
    out: Output,
    other_link_type: u64,
    kept: Count,
    /// Time goes on where no frames come.
    is_live: bool,
}

/// Where flows go that have ended.
struct Output {
    top: Top,
    lines: Option<Lines>,
    /// Of interfaces, by number.
    names: Vec<String>,
    is_biflow: bool,
    records: u64,
}

impl Output {
    fn take(&mut self, record: &FlowRecord) {
        self.records += 1;
        self.top.take(record);
        if let Some(lines) = &mut self.lines {
            let name = self.names.get(record.interface as usize).map(String::as_str);
            lines.push(&json::line(record, name, self.is_biflow));
        }
    }

    /// What is in the way of lines, once they have ended.
    fn finish(&mut self) -> Result<(), ConsumerError> {
        let failure = self.lines.as_mut().and_then(|lines| lines.finish().1);
        failure.map_or(Ok(()), |failure| Err(failed(failure)))
    }
}

fn failed(source: io::Error) -> ConsumerError {
    if Stalled::is_why(&source) {
        return ConsumerError::ReaderStalled(FlowsError::ReaderStalled.into());
    }
    if source.kind() == io::ErrorKind::BrokenPipe {
        return ConsumerError::ReaderGone(FlowsError::ReaderGone.into());
    }
    ConsumerError::Output(FlowsError::Write(source).into())
}

impl Flows {
    fn take_all<'a>(&mut self, records: impl Iterator<Item = Record<'a>>) {
        let Flows { table, interfaces, out, other_link_type, kept, .. } = self;
        let seen = records.filter_map(|record| {
            let meta = &record.meta;
            *kept += Count::one(meta.wire_len);
            if !interfaces.get(meta.interface_id as usize).copied().unwrap_or(false) {
                *other_link_type += 1;
                return None;
            }
            Some(Seen::from(record))
        });
        table.add(seen, &mut |record| out.take(&record));
    }
}

impl Sink for Flows {
    fn describe(
        &mut self,
        _number: u32,
        interface: &Interface,
        _label: &str,
    ) -> Result<(), ConsumerError> {
        self.interfaces.push(interface.link_type == LINKTYPE_ETHERNET);
        self.out.names.push(interface.name.clone());
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
        self.out.lines.iter_mut().for_each(Lines::flush);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        if self.is_live
            && let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH)
        {
            let Flows { table, out, .. } = self;
            table.advance(now.as_nanos() as u64, &mut |record| out.take(&record));
        }
        if let Some(lines) = &mut self.out.lines {
            lines.flush();
            if lines.has_ended() {
                return self.out.finish();
            }
        }
        Ok(())
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        let Flows { table, out, .. } = self;
        table.finish(&mut |record| out.take(&record));
        out.finish()
    }

    fn kept(&self) -> Count {
        self.kept
    }
}

impl RunSink for Flows {
    fn flows(&self) -> Option<FlowsReport> {
        let counters = self.table.counters();
        let Counters { began, evicted, not_flows, .. } = counters;
        let names = |number: u32| self.out.names.get(number as usize).map(String::as_str);
        let table = match self.out.lines {
            Some(_) => String::new(),
            None => text::table(self.out.top.records(), names, self.out.is_biflow),
        };
        Some(FlowsReport {
            records: self.out.records,
            began,
            evicted,
            not_flows: NotFlowsReport {
                arp: not_flows.arp,
                other_protocol: not_flows.other_protocol,
                cut_off: not_flows.cut_off,
                malformed: not_flows.malformed,
                too_many_vlans: not_flows.too_many_vlans,
                other_link_type: self.other_link_type,
            },
            fragments_attributed: counters.fragments_attributed,
            fragments_unattributed: counters.fragments_unattributed,
            clock_steps_ahead: counters.clock_steps_ahead,
            clock_steps_back: counters.clock_steps_back,
            unwritten: self.out.lines.as_ref().map_or(0, Lines::unwritten),
            table,
        })
    }
}
