//! Limits of a client, and of its requests to a daemon.

use std::time::Duration;

/// How long the daemon's answer is waited for, where the caller sets no other limit.
pub use weir_plug::limits::PATIENCE_MAX;

/// Lines of a consumer's wake page: rings that it can read at a time.
pub(crate) const LINES: usize = 1024;
/// How long a reader waits between two tries to find the successor of a daemon that has ended.
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(100);
/// How long frames of one ring wait for older ones of another: as `weir capture` has it.
pub(crate) const SLACK: Duration = Duration::from_millis(8);
/// Longest name of a feed, in bytes.
pub const FEED_NAME_MAX: usize = 32;
/// Shortest and longest time for which an entry is blocked, if not without an end: a block list is looked through once
/// a second at most, and a time longer than a month is meant to be permanent.
pub const BLOCK_TIME_MIN: Duration = Duration::from_secs(1);
/// See [`BLOCK_TIME_MIN`].
pub const BLOCK_TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
