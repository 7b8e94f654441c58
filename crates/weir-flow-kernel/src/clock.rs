//! The clock of the programs, `bpf_ktime_get_coarse_ns`, and the one of records.

use rustix::time::{ClockId, Timespec, clock_gettime};

fn ns(time: Timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// The programs' time: CLOCK_MONOTONIC_COARSE in nanoseconds. It goes on every 1 to 10 ms, by the kernel's HZ.
#[must_use]
pub fn now_ns() -> u64 {
    ns(clock_gettime(ClockId::MonotonicCoarse))
}

/// Offset that turns it into nanoseconds since the Unix epoch, by the present clocks.
pub(crate) fn to_epoch_ns() -> u64 {
    ns(clock_gettime(ClockId::Realtime)).wrapping_sub(ns(clock_gettime(ClockId::Monotonic)))
}
