//! Limits of this crate.

use std::time::Duration;

/// Most bytes that are read to measure the region. An uncached mapping gives some 30 to 100 MB/s: this takes it less
/// than 150 ms.
pub const MEASURED_BYTES_MAX: u64 = 4 << 20;
/// Most times in a turn that a slot is armed anew because the ring has reached its threshold meanwhile. Thresholds that
/// are always one frame ahead would keep the thread trying for as long as frames come.
pub const ARM_TRIES_MAX: usize = 3;
/// Least time from the beginning of one turn of the waking thread to that of the next. Messages of a hostile
/// application, and bells of a hostile host, cost a turn each. As long as a waker keeps quiet
/// (`weir_ring::wake::RING_GAP`).
pub const TURN_TIME_MIN: Duration = Duration::from_micros(50);
