//! The report on the flows of a run, whose table was in user space or in the kernel.

use serde::Serialize;
use weir_flow::Counters;

use super::exports::{ExportReport, Exports};
use crate::error_words::without_number;

/// The report on flows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowsReport {
    /// Records of flows that ended, and one record of a flow at each active timeout.
    pub records: u64,
    /// Flows that began.
    pub began: u64,
    /// Flows that were ended early, because the table was full.
    pub evicted: u64,
    /// Frames that belong to no flow, by reason.
    pub not_flows: NotFlowsReport,
    /// Fragments after the first whose ports are known, and those whose ports are unknown, which count as flows without
    /// ports.
    pub fragments_attributed: u64,
    pub fragments_unattributed: u64,
    /// Forward and backward steps of the clock that stamped the frames.
    pub clock_steps_ahead: u64,
    pub clock_steps_back: u64,
    /// The exports of the records.
    pub exports: Vec<ExportReport>,
    /// The flows with the most bytes, as a text table.
    #[serde(skip)]
    pub table: String,
}

/// Removes the error number from the report of an export, as in other reports.
fn in_plain_words(mut export: ExportReport) -> ExportReport {
    export.error = export.error.as_deref().map(without_number);
    export
}

/// Frames that belong to no flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NotFlowsReport {
    pub arp: u64,
    pub other_protocol: u64,
    pub cut_off: u64,
    pub malformed: u64,
    pub too_many_vlans: u64,
    /// Frames of interfaces whose link type is neither Ethernet nor raw IP.
    pub other_link_type: u64,
}

impl FlowsReport {
    /// Returns the report of a finished table and its exports.
    pub fn new(counters: &Counters, exports: Vec<ExportReport>, out: &Exports) -> FlowsReport {
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
                other_link_type: not_flows.other_link_type,
            },
            fragments_attributed: counters.fragments_attributed,
            fragments_unattributed: counters.fragments_unattributed,
            clock_steps_ahead: counters.clock_steps_ahead,
            clock_steps_back: counters.clock_steps_back,
            exports: exports.into_iter().map(in_plain_words).collect(),
            table: out.table(),
        }
    }
}
