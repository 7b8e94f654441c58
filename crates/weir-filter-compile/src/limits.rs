//! Limits of expressions and of compiling them.

use std::time::Duration;

/// Longest text that is taken, in bytes.
pub const TEXT_MAX: usize = 64 << 10;

/// Processor time of the child that compiles, in whole seconds: a few kilobytes of hostile text take longer.
pub const COMPILE_CPU_S_MAX: u64 = 5;

/// Time of the child by the clock, on a machine that is busy with other things.
pub const COMPILE_TIME_MAX: Duration = Duration::from_secs(15);

/// Memory that the child may map: libpcap needs some megabytes for the longest filters.
pub const COMPILE_BYTES_MAX: u64 = 512 << 20;

/// Longest answer of the child, in bytes: 4,096 instructions take less than half of that.
pub const ANSWER_BYTES_MAX: u64 = 256 << 10;
