//! How often views are made, and how much of them is kept.

use std::time::Duration;

/// A view is made each time.
pub const VIEW_EVERY: Duration = Duration::from_secs(1);
/// How long a monitor that says nothing is waited for before it is looked whether the run is over.
pub const PATIENCE: Duration = Duration::from_millis(100);
/// Flows that are copied between two batches of frames, or some more.
pub const PART_FLOWS: usize = 4096;
/// Places of a table (lines, buckets) that are looked through for that, where they are empty.
pub const PART_PLACES: usize = 4096;
/// Parts that wait for the maker of views: 16 MiB.
pub const PARTS_MAX: usize = 32;
/// Flows that a view has.
pub const SHOWN_FLOWS_MAX: usize = 2000;
/// Talkers that a view has.
pub const SHOWN_TALKERS_MAX: usize = 200;
/// Addresses that are told apart; those that come beyond are no talkers.
pub const TALKERS_MAX: usize = 1 << 18;
