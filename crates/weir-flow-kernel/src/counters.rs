//! Counters beside flows.

use weir_flow::Counters;

/// Counts of a table since it was opened, over all CPUs. They only grow, except for `table.flows`, and for lost
/// records: a record of a flow that turns out to have been reported before was not lost.
///
/// They are read while programs write them, one by one: exact once the table is finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// As of a table in user space. Steps of clocks there are none, and nobody knows of fragments that are forgotten.
    pub table: Counters,
    /// Records of flows that ended while [`records_max`](crate::KernelConfig::records_max) others waited.
    pub lost_records: u64,
    /// Frames of these.
    pub lost_packets: u64,
    /// Bytes of these.
    pub lost_bytes: u64,
}
