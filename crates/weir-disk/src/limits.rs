//! Limits of this crate. ARCHITECTURE.md lists them all.

/// Most writes in progress; a further write waits until one completes. The limit is only for memory: a recorder has
/// fewer writes in progress for each volume.
pub const WRITES_MAX: usize = 256;

/// Consecutive steps that write nothing (because they are interrupted, lack resources, or write 0 bytes) after which a
/// write fails.
pub const TRIES_MAX: u32 = 1000;

/// Most buffers that are kept for reuse.
pub const SPARE_BUFFERS_MAX: usize = 24;

/// Threads that write to a directory if io_uring is refused.
pub const PLAIN_THREADS: usize = 2;
