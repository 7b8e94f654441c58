//! Limits of a flow table.

use std::time::Duration;

/// Fewest flows of a table: a few pages.
pub const FLOWS_MIN: u64 = 1 << 10;

/// Most flows of a table: 23 GiB of memory. 24 bits number a line of 16 of them; the other bits of a hash are the tag.
pub const FLOWS_MAX: u64 = 1 << 28;

/// Shortest idle and active time-outs. An eighth of the table is looked through each 64th of it.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Longest idle and active time-outs.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Packets whose fragments are followed at the same time. Of older ones, fragments that still come have no ports.
pub const FRAGMENTED_PACKETS_MAX: usize = 4096;

/// How long fragments of a packet may come. Source: RFC 8200, section 4.5; Linux waits 30 s for those of IPv4
/// (`ipfrag_time`).
pub const REASSEMBLY_TIME_MAX: Duration = Duration::from_secs(60);

/// A frame that is later than the last by more is no sign that time has passed: a clock was set.
pub const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(3600);

/// A frame that is earlier than the latest by more is not out of order: a clock was set.
pub const CLOCK_BACK_MAX: Duration = Duration::from_secs(10);

/// Highest interface number that a record has. Higher ones are recorded as this.
pub const INTERFACE_MAX: u32 = u16::MAX as u32;
