//! Limits of the probe.

use std::time::Duration;

/// Between two times that a block list is looked through for entries whose time is over: an engine makes its list anew
/// then, and ends may follow each other closely.
pub const EXPIRY_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Lives of a source that are over and whose feeds a consumer has not taken: while the consumer stands still, the
/// interface may come and go any number of times. Each holds the memory of its rings.
pub const PAST_LIVES_MAX: usize = 4;

/// Sources that have ended whose `Info` can still be asked for.
pub const ENDED_SOURCES_MAX: usize = 1000;

/// Channels that a consumer in another process may have: each is two descriptors of the probe's process, and two more
/// for each thread that writes rings of the feed which has it.
pub const REMOTE_CHANNELS_MAX: usize = 64;
