//! Limits of flow tables in the kernel.

use std::time::Duration;

/// Most flows of a CPU's table: 6 GiB in the kernel. [`weir_flow::limits::FLOWS_MIN`] is the least.
pub const FLOWS_OF_A_CPU_MAX: u64 = 1 << 26;

/// Fewest records of flows that have ended that wait for user space, of each CPU.
pub const RECORDS_MIN: u32 = 1 << 6;

/// Most records that wait, of each CPU: 384 MiB.
pub const RECORDS_MAX: u32 = 1 << 22;

/// Interfaces that share a table: 10 bits of a key say which.
pub const INTERFACES_MAX: usize = 1 << 10;

/// A flow is reported as idle so long after its time-out, so that a program that has read the clock and was held up
/// does not add to it. If one does, that is reported behind.
pub const IDLE_MARGIN: Duration = Duration::from_millis(20);

/// A slot that is written as often as it is read is left for the next look.
pub const READ_TRIES_MAX: u32 = 1000;

/// Idle flows are looked for so often at most: each look takes a line of every bucket from the CPU that writes it.
pub const IDLE_LOOK_EVERY: Duration = Duration::from_millis(50);
