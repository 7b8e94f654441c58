//! The clock of the BPF programs, `bpf_ktime_get_coarse_ns`, and its conversion to the wall clock of records.

use rustix::time::{ClockId, Timespec, clock_gettime};

fn ns(time: Timespec) -> u64 {
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Returns the time of the programs' clock: CLOCK_MONOTONIC_COARSE in nanoseconds. It advances once in 1 to 10 ms, as
/// the kernel's HZ says.
#[must_use]
pub fn now_ns() -> u64 {
    ns(clock_gettime(ClockId::MonotonicCoarse))
}

/// Returns the offset that converts a time of [`now_ns`] into nanoseconds since the Unix epoch, from the present
/// difference of both clocks.
pub(crate) fn to_epoch_ns() -> u64 {
    ns(clock_gettime(ClockId::Realtime)).wrapping_sub(ns(clock_gettime(ClockId::Monotonic)))
}
