//! Limits of this crate. ARCHITECTURE.md lists them all.

/// Writes that are under way at a time; one more waits until one of them is over. Bounds memory alone: a recorder has
/// fewer of them a volume.
pub const WRITES_MAX: usize = 256;

/// Tries in a row that write nothing (interrupted, no resources, nothing taken) until a write fails.
pub const TRIES_MAX: u32 = 1000;

/// Buffers for copies that are kept for the next one.
pub const SPARE_BUFFERS_MAX: usize = 24;

/// Threads that write to a directory where io_uring is refused.
pub const PLAIN_THREADS: usize = 2;
