//! Limits of a flow table.

use std::time::Duration;

/// Fewest flows of a table: a few pages.
pub const FLOWS_MIN: u64 = 1 << 10;

/// Most flows of a table: 23 GiB of memory. 24 bits number a line of 16 of them; the other bits of a hash are the tag.
pub const FLOWS_MAX: u64 = 1 << 28;

/// Shortest idle and active time-outs. In each 64th of the shorter time-out, an eighth of the table is searched for
/// flows that have ended.
pub const TIMEOUT_MIN: Duration = Duration::from_millis(100);

/// Longest idle and active time-outs.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Most packets whose fragments are tracked at the same time. Later fragments of packets that were forgotten have no
/// ports.
pub const FRAGMENTED_PACKETS_MAX: usize = 4096;

/// Longest time between the first fragment of a packet and its last. Source: RFC 8200, section 4.5; Linux waits 30 s
/// for fragments of IPv4 (`ipfrag_time`).
pub const REASSEMBLY_TIME_MAX: Duration = Duration::from_secs(60);

/// If a frame is later than the one before by more than this, a clock was set: time has not passed.
pub const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(3600);

/// If a frame is earlier than the latest by more than this, a clock was set: the frame is not just out of order.
pub const CLOCK_BACK_MAX: Duration = Duration::from_secs(10);

/// Highest interface number in a record. Higher numbers are recorded as this number.
pub const INTERFACE_MAX: u32 = u16::MAX as u32;
