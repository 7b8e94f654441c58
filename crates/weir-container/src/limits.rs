//! How much of a container engine's answers is read.

use std::time::Duration;

/// Longest answer of a container engine, in bytes. A container's description has some 10 KB, a list of 1,000
/// containers some 2 MB.
pub const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// How long an engine may take for an answer. A busy Docker takes a second.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Names of running containers in an error.
pub const NAMES_IN_ERROR_MAX: usize = 10;
