//! Limits of a client.

use std::time::Duration;

/// Lines of a consumer's wake page: rings that it can read at a time.
pub(crate) const LINES: usize = 1024;
/// How long a reader waits between two tries to find the successor of a daemon that has ended.
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(100);
/// How long frames of one ring wait for older ones of another: as `weir capture` has it.
pub(crate) const SLACK: Duration = Duration::from_millis(8);
