//! Limits of this crate.

use std::time::Duration;

/// Most `ivshmem` devices that are examined; a machine has two for each daemon.
pub const DEVICES_MAX: usize = 64;
/// Most bytes that are read, each twice, to measure the speed of the region.
pub const MEASURED_BYTES_MAX: u64 = 4 << 20;
/// Time after which the measurement ends. The current piece of 64 KiB is still finished, which takes up to 4 ms if the
/// mapping is not cached. The time is not shorter, because other programs may use the processor meanwhile.
pub const MEASURING_TIME_MAX: Duration = Duration::from_millis(20);
/// Bytes a second below which the region's mapping counts as uncached. Uncached reads of 8 bytes each reach 30 to 100
/// MB/s; a cached mapping reaches more than 1 GB/s. So does QEMU's emulation; it reached 378 MB/s when other programs
/// used the processor most of the time.
pub const UNCACHED_BELOW: f64 = 200e6;
/// Most times that one turn arms a slot again because the ring has reached the threshold meanwhile. With thresholds
/// that are always one frame ahead, the thread would keep trying for as long as frames come.
pub const ARM_TRIES_MAX: usize = 3;
/// Least time from the beginning of one turn of the waking thread to the beginning of the next. Each message of a
/// hostile application and each bell of a hostile host would otherwise cost a turn. As long as the gap between two
/// wake-ups (`weir_ring::wake::RING_GAP`).
pub const TURN_TIME_MIN: Duration = Duration::from_micros(50);
