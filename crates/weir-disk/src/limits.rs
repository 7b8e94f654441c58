//! Limits of this crate. ARCHITECTURE.md lists them all.

/// Writes that are pending at a time. One more waits until one of them has completed. This only bounds memory: a
/// recorder has fewer pending writes for each volume.
pub const WRITES_MAX: usize = 256;

/// Consecutive tries that write nothing (interrupted, no resources, 0 bytes written) before a write fails.
pub const TRIES_MAX: u32 = 1000;

/// Unused buffers that are kept for later copies.
pub const SPARE_BUFFERS_MAX: usize = 24;

/// Threads for each directory where io_uring is refused.
pub const PLAIN_THREADS: usize = 2;
