//! Limits of a consumer.

/// Past feeds of one output that a consumer keeps to read them to their end. An interface that comes and goes leaves a
/// past feed each time, if the consumer is slow. Each past feed holds the memory of its rings.
pub const PAST_FEEDS_MAX: usize = 4;

/// Runs of frames that are returned between two checks of everything else: feeds that join, writers that are gone, the
/// clock. A check takes as long as some frames.
pub(crate) const RUNS_PER_UPKEEP: u32 = 64;
