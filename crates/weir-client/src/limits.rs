//! Limits of a client, and of its requests to a daemon.

use std::time::Duration;

/// Longest wait for the daemon's answer, if the caller sets no other limit.
pub use weir_plug::limits::PATIENCE_MAX;

/// Number of lines of a consumer's wake page: the most rings that the consumer can read at a time.
pub(crate) const LINES: usize = 1024;
/// Time between two attempts to find the successor of a daemon that has ended.
pub(crate) const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Longest time that frames of one ring wait for older frames of another ring, as in `weir capture`.
pub(crate) const SLACK: Duration = Duration::from_millis(8);
/// Longest name of a feed, in bytes.
pub const FEED_NAME_MAX: usize = 32;
/// Shortest time for which an entry can be blocked, unless it is blocked permanently: the daemon checks block lists at
/// most once a second. The longest time is a month: a longer one is probably meant to be permanent.
pub const BLOCK_TIME_MIN: Duration = Duration::from_secs(1);
/// See [`BLOCK_TIME_MIN`].
pub const BLOCK_TIME_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
