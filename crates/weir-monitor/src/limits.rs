//! How often views are made, and how much data they have.

use std::time::Duration;

/// Interval between views.
pub const VIEW_EVERY: Duration = Duration::from_secs(1);
/// While the maker of views waits for the monitor, it checks at this interval whether the run is over.
pub const PATIENCE: Duration = Duration::from_millis(100);
/// A part of a pass over the flows ends once it has this many flows. The monitor copies one part between two batches of
/// frames.
pub const PART_FLOWS: usize = 4096;
/// The most places of a flow table (lines or buckets) that are searched for one part.
pub const PART_PLACES: usize = 4096;
/// The most parts that wait for the maker of views: 16 MiB.
pub const PARTS_MAX: usize = 32;
/// The most flows of a view.
pub const SHOWN_FLOWS_MAX: usize = 2000;
/// The most talkers of a view.
pub const SHOWN_TALKERS_MAX: usize = 200;
/// The most addresses for which traffic is summed up. Further addresses are ignored.
pub const TALKERS_MAX: usize = 1 << 18;
