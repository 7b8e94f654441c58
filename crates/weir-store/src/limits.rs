//! How much an output keeps.

/// Names of addresses that a run keeps, for files that begin later. A host has hundreds of containers; those that come
/// and go for weeks are not to fill its memory.
pub const NAMES_MAX: usize = 16_384;

/// The largest set of fields in an index's entry. Half of the smallest first-level cache of a server's CPU, so that the
/// flows' cache beside it (4 KiB) and the frames fit, too; 1.6 % of a piece of 1 MiB.
pub const SET_BYTES_MAX: usize = 16 << 10;

/// Flows that a scan keeps, so that their next frames cost one comparison.
pub(crate) const SCAN_FLOWS: usize = 256;
