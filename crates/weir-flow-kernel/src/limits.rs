//! Limits of flow tables in the kernel.

use std::time::Duration;

/// Most flows of a CPU's table: 6 GiB of kernel memory. [`weir_flow::limits::FLOWS_MIN`] is the least.
pub const FLOWS_OF_A_CPU_MAX: u64 = 1 << 26;

/// Smallest capacity of a CPU's ring of records.
pub const RECORDS_MIN: u32 = 1 << 6;

/// Largest capacity of a CPU's ring of records: 384 MiB.
pub const RECORDS_MAX: u32 = 1 << 22;

/// Most interfaces that share a table: a key has 10 bits for the number of the interface.
pub const INTERFACES_MAX: usize = 1 << 10;

/// A flow is reported as idle this long after its time-out. A program that has read the clock and was then delayed
/// can thus still add to the flow before the report. If it was delayed longer, its frame is reported in a further
/// record.
pub const IDLE_MARGIN: Duration = Duration::from_millis(20);

/// Most attempts to read a slot consistently. If frames change the slot during all of them, the next pass reads it.
pub const READ_TRIES_MAX: u32 = 1000;

/// Shortest time between two searches for idle flows: each search takes a cache line of every bucket from the CPU
/// that writes it.
pub const IDLE_LOOK_EVERY: Duration = Duration::from_millis(50);
