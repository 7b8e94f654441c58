//! Limits of the probe.

use std::time::Duration;

/// Shortest time between two removals of expired entries from a block list: an engine builds its list anew each time,
/// and many entries may expire shortly after each other.
pub const EXPIRY_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Most past lives of a source whose feeds a stalled consumer has not begun to read. (A life begins when the source is
/// opened, and ends when it is closed.) The interface may vanish and come back any number of times, and each life holds
/// the memory of its rings.
pub const PAST_LIVES_MAX: usize = 4;

/// Number of sources that have ended and whose `Info` is still available.
pub const ENDED_SOURCES_MAX: usize = 1000;

/// Most channels of a consumer in another process. Each channel takes two descriptors of the probe's process, and two
/// more for each thread that writes a ring of the feed that has the channel.
pub const REMOTE_CHANNELS_MAX: usize = 64;
