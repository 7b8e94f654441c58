//! Limits of a consumer.

/// Feeds of one output that have left a consumer and are not read to their end: lives of an interface that comes and
/// goes while the consumer is slow. Each holds the memory of its rings.
pub const PAST_FEEDS_MAX: usize = 4;

/// Runs of frames that are given one by one between two looks at everything else: feeds that join, writers that have
/// gone, the clock. A look takes as long as some frames.
pub(crate) const RUNS_PER_UPKEEP: u32 = 64;
