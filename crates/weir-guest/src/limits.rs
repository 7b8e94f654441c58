//! Limits of this crate.

use std::time::Duration;

/// Most devices of the kind that are looked at; a machine has two of each daemon.
pub const DEVICES_MAX: usize = 64;
/// Most bytes that are read, each twice, to measure the region.
pub const MEASURED_BYTES_MAX: u64 = 4 << 20;
/// How long that may take, and as long as one piece of 64 KiB more: 4 ms where the mapping is not cached. Some time,
/// since other programs may have the processor meanwhile.
pub const MEASURING_TIME_MAX: Duration = Duration::from_millis(20);
/// Bytes a second below which the region's mapping counts as uncached. Uncached reads, of 8 bytes each, give 30 to
/// 100 MB/s; a cached mapping gives more than 1 GB/s. QEMU's emulation gives that, too, but 378 MB/s where the machine
/// was so busy that other programs had the processor most of the time.
pub const UNCACHED_BELOW: f64 = 200e6;
/// Most times in a turn that a slot is armed anew because the ring has reached its threshold meanwhile. Thresholds that
/// are always one frame ahead would keep the thread trying for as long as frames come.
pub const ARM_TRIES_MAX: usize = 3;
/// Least time from the beginning of one turn of the waking thread to that of the next. Messages of a hostile
/// application, and bells of a hostile host, cost a turn each. As long as a waker keeps quiet
/// (`weir_ring::wake::RING_GAP`).
pub const TURN_TIME_MIN: Duration = Duration::from_micros(50);
