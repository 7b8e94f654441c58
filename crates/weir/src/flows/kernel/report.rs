//! The report of a run with the flow table in the kernel.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use serde::Serialize;
use weir_export::ExportError;
use weir_flow_kernel::KernelCounters;

use super::plan::KernelPlan;
use crate::ending::{show, verdict};
use crate::flows::exports::{ExportReport, Exports, is_readers_choice};
use crate::flows::report::FlowsReport;
use crate::interruptible_writer::Stop;
use crate::out;
use crate::report::flow_lines::of_flows;
use crate::units::{grouped, packet_rate};

/// The engine's name in reports.
pub const ENGINE: &str = "flow-table";

/// The report of the run.
pub struct KernelReport<'a> {
    pub plan: &'a KernelPlan,
    pub counters: KernelCounters,
    pub seconds: f64,
    pub exports: Vec<ExportReport>,
    pub out: &'a Exports,
}

/// The report as JSON. Its fields have the names of those in a capture's report.
#[derive(Serialize)]
struct Json<'a> {
    source: String,
    engine: &'static str,
    hook: &'static str,
    duration_s: f64,
    offered: u64,
    drops: BTreeMap<&'static str, u64>,
    /// Frames that are in a record or belong to no flow.
    delivered: u64,
    unexplained: i128,
    mpps: f64,
    flows: &'a FlowsReport,
}

impl KernelReport<'_> {
    /// Prints the report and errors, and returns the exit status.
    pub fn conclude(
        self,
        error: Option<String>,
        failure: Option<ExportError>,
        stop: &Arc<AtomicBool>,
    ) -> Result<u8> {
        let flows = FlowsReport::new(&self.counters.table, self.exports.clone(), self.out);
        let table = &self.counters.table;
        let recorded = self.out.packets();
        let delivered = recorded + table.not_flows.total();
        let lost = self.counters.lost_packets;
        let unexplained = i128::from(table.frames) - i128::from(delivered) - i128::from(lost);
        let json = Json {
            source: self.plan.source(),
            engine: ENGINE,
            hook: self.plan.hook(),
            duration_s: self.seconds,
            offered: table.frames,
            drops: [("records", lost)].into(),
            delivered,
            unexplained,
            mpps: table.frames as f64 / self.seconds.max(1e-9) / 1e6,
            flows: &flows,
        };
        let text = if self.plan.json {
            serde_json::to_string(&json)? + "\n"
        } else {
            out::plain(&text(&json))
        };
        show(&text, Stop::new(Arc::clone(stop), None));
        let mut errors: Vec<String> =
            flows.exports.iter().filter_map(|one| one.error.clone()).collect();
        match failure {
            Some(failure) if is_readers_choice(&failure) => eprintln!("weir: {failure}"),
            Some(failure) => errors.push(format!("{failure}: {}", failure.source)),
            None => {}
        }
        errors.extend(error);
        Ok(verdict(errors, unexplained, self.plan.fail_on_loss, lost))
    }
}

/// Returns the report as text for people.
fn text(json: &Json<'_>) -> String {
    let mut text =
        format!("{}: {ENGINE} at {} (frames stay in the kernel)\n", json.source, json.hook);
    let rate = packet_rate(json.mpps * 1e6);
    let _ = writeln!(text, "{:.3} s, {rate}\n", json.duration_s);
    for (name, count) in [
        ("offered", json.offered),
        ("counted", json.delivered),
        ("drop records", json.drops["records"]),
    ] {
        let _ = writeln!(text, "  {name:<12} {:>13}", grouped(count));
    }
    if json.unexplained == 0 {
        text += "  offered = counted + drops\n\n";
    }
    for line in of_flows(json.flows) {
        text += &line;
        text.push('\n');
    }
    text
}
