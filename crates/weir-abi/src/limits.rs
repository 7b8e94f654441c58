//! Limits of the libraries.

use std::time::Duration;

/// Longest wait before cancellation is checked again: a waiting thread that is cancelled ends at most this much later.
/// Four wake-ups a second have no measurable cost in an idle program.
pub const WAIT_SLICE_MAX: Duration = Duration::from_millis(250);
