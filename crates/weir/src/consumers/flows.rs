//! The consumer of `weir flows`: counts frames by flow.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use thiserror::Error;
use weir_consumer::{ConsumerError, Count, Run, Sink, Stalled};
use weir_export::ExportError;
use weir_flow::{FlowTable, LinkLayer, Seen};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;
use weir_monitor::Reporter;

use super::{Input, Named, RunSink};
use crate::cli::FlowMonitorArgs;
use crate::flows::exports::{ExportReport, ExportSettings, Exports};
use crate::flows::report::FlowsReport;
use crate::flows::table::TableInAdvance;
use crate::flows::watch::Watch;

/// The most frames that the sink takes in one call.
const RUN_FRAMES: u64 = 256;
/// Parts of the table that are reported at a time while no frames come. Reporting so many parts takes some
/// milliseconds.
const PARTS_AT_REST: usize = 32;

/// Why flows cannot be printed.
#[derive(Debug, Error)]
enum FlowsError {
    #[error("standard output: its reader has gone")]
    ReaderGone,
    #[error("standard output: its reader takes nothing any more")]
    ReaderStalled,
}

/// Creates the consumer.
pub(super) fn open(input: &Input<'_>, args: &FlowMonitorArgs) -> Result<Named> {
    let is_live = input.plan.is_live();
    let table = input.plan.flow_table.as_ref().and_then(TableInAdvance::take);
    let table = table.expect("a run that counts by flow has a table, and one consumer for it");
    let watch = input.plan.watch.as_ref();
    let (json, stop, end) = (input.plan.json, &input.stop, &input.plan.end);
    let settings = ExportSettings { args, json, is_live, stop, end, watch };
    let sink = Flows {
        table,
        links: Vec::new(),
        out: Exports::open(&settings)?,
        reports: Vec::new(),
        kept: Count::default(),
        has_clock_stamps: true,
        reporter: watch.and_then(Watch::take_reporter),
    };
    Ok(Named::new("flows", input.ordered(sink)))
}

/// Counts frames by flow.
struct Flows {
    table: FlowTable,
    /// Interfaces, by number.
    links: Vec<LinkLayer>,
    out: Exports,
    /// Reports of exports that have ended.
    reports: Vec<ExportReport>,
    kept: Count,
    /// The frames of all feeds so far are stamped by this machine's clock, so the clock advances the table while no
    /// frames come.
    has_clock_stamps: bool,
    /// Sends the flows to viewers.
    reporter: Option<Reporter>,
}

/// Converts the error of a failed export on standard output.
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
        let Flows { table, links, out, kept, .. } = self;
        let seen = records.map(|record| {
            let meta = &record.meta;
            *kept += Count::one(meta.wire_len);
            let link = links.get(meta.interface_id as usize).copied();
            Seen { link: link.unwrap_or(LinkLayer::Other), ..Seen::from(record) }
        });
        table.add(seen, &mut |record| out.take(&record));
    }

    /// Reports at most this many parts of the table to viewers.
    fn report(&mut self, parts: usize) {
        let Flows { table, out, kept, reporter: Some(reporter), .. } = self else { return };
        let Count { frames, wire_bytes } = *kept;
        let snapshot =
            || out.snapshot(table.counters(), table.capacity(), frames, Some(wire_bytes));
        reporter.go_on(parts, table.lines(), |lines| table.live_part(lines), snapshot);
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

impl Sink for Flows {
    fn describe(
        &mut self,
        _number: u32,
        interface: &Interface,
        _label: &str,
    ) -> Result<(), ConsumerError> {
        self.links.push(LinkLayer::of(interface.link_type));
        self.out.describe(interface);
        Ok(())
    }

    fn joined_foreign_clock(&mut self) {
        self.has_clock_stamps = false;
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
        self.report(1);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        if self.has_clock_stamps
            && !self.links.is_empty()
            && let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH)
        {
            let Flows { table, out, .. } = self;
            table.advance(now.as_nanos() as u64, &mut |record| out.take(&record));
        }
        self.out.flush();
        self.report(PARTS_AT_REST);
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
        // The run already has an error to report.
        let _ = self.end_all();
    }

    fn flows(&self) -> Option<FlowsReport> {
        let reports = self.reports.clone();
        let counters = self.table.counters();
        Some(FlowsReport::new(&counters, reports, &self.out))
    }
}
