//! Counters of a flow table in the kernel.

use weir_flow::Counters;

/// Counters of a table since it was opened, summed over all CPUs. They only grow, except for `table.flows` and the
/// counts of lost records: a lost record of a flow that had been reported before is subtracted again.
///
/// The counters are read one after the other while programs write them: they are exact once the table is finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// The counters that a table in user space has, too. Clock steps and forgotten fragments are always 0 here: the
    /// programs use one clock, and nothing counts the packets that the kernel's map of fragments forgets.
    pub table: Counters,
    /// Records lost because [`records_max`](crate::KernelConfig::records_max) others waited when their flows ended.
    pub lost_records: u64,
    /// Frames of the lost records.
    pub lost_packets: u64,
    /// Bytes of the lost records.
    pub lost_bytes: u64,
}
