//! Limits of this crate. ARCHITECTURE.md lists them all.

/// Most writes in progress at a time; another one waits until one completes. This limits only memory: a
/// recorder has fewer for each volume.
pub const WRITES_MAX: usize = 256;

/// Successive steps that write nothing (interrupted, no resources, nothing accepted) after which a write
/// fails.
pub const TRIES_MAX: u32 = 1000;

/// Most buffers that are kept for reuse.
pub const SPARE_BUFFERS_MAX: usize = 24;

/// Threads that write to a directory if io_uring is refused.
pub const PLAIN_THREADS: usize = 2;
