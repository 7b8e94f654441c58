//! The report on the flows of a run, whose table was in user space or in the kernel.

use serde::Serialize;
use weir_flow::{Counters, NotFlows};

use super::exports::{ExportReport, Exports};

/// The report on flows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowsReport {
    /// Records of flows that ended, and one record of a flow at each active timeout.
    pub records: u64,
    /// Flows that began.
    pub began: u64,
    /// Flows that ended early to make space for another: the table, or the slots of the new flow, were full.
    pub evicted: u64,
    /// Frames that belong to no flow, by reason.
    pub not_flows: NotFlowsReport,
    /// Fragments after the first whose ports are known.
    pub fragments_attributed: u64,
    /// Fragments after the first whose ports are unknown. They are counted in flows with ports 0.
    pub fragments_unattributed: u64,
    /// Forward steps of the clock that stamped the frames.
    pub clock_steps_ahead: u64,
    /// Backward steps of that clock.
    pub clock_steps_back: u64,
    /// The exports of the records.
    pub exports: Vec<ExportReport>,
    /// The flows with the most bytes, as a text table.
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
    /// Frames of interfaces whose link type is neither Ethernet nor raw IP.
    pub other_link_type: u64,
}

impl FlowsReport {
    /// Returns the report of a finished table and its exports.
    pub fn new(counters: &Counters, exports: Vec<ExportReport>, out: &Exports) -> FlowsReport {
        // All fields are named, so that a new counter cannot be forgotten here.
        let Counters {
            // The report of the run has them.
            frames: _,
            not_flows,
            // None are left in a finished table.
            flows: _,
            began,
            evicted,
            fragments_attributed,
            fragments_unattributed,
            // If later fragments of these packets came, they are in `fragments_unattributed`.
            fragments_forgotten: _,
            clock_steps_ahead,
            clock_steps_back,
        } = *counters;
        let NotFlows { arp, other_protocol, cut_off, malformed, too_many_vlans, other_link_type } =
            not_flows;
        FlowsReport {
            records: out.records(),
            began,
            evicted,
            not_flows: NotFlowsReport {
                arp,
                other_protocol,
                cut_off,
                malformed,
                too_many_vlans,
                other_link_type,
            },
            fragments_attributed,
            fragments_unattributed,
            clock_steps_ahead,
            clock_steps_back,
            exports,
            table: out.table(),
        }
    }
}
