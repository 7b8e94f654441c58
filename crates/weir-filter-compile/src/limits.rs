//! Limits of expressions and of compiling them.

use std::time::Duration;

/// Longest text that is accepted, in bytes.
pub const TEXT_MAX: usize = 64 << 10;

/// Most processor time of the child, in whole seconds: a few kilobytes of hostile text would take longer.
pub const COMPILE_CPU_S_MAX: u64 = 5;

/// Most time of the child by the clock. The machine may be busy with other work.
pub const COMPILE_TIME_MAX: Duration = Duration::from_secs(15);

/// Most memory that the child may map: libpcap needs some megabytes for the longest filters.
pub const COMPILE_BYTES_MAX: u64 = 512 << 20;

/// Longest answer of the child, in bytes: 4,096 instructions take less than half of that.
pub const ANSWER_BYTES_MAX: u64 = 256 << 10;
