//! How much an output keeps.

/// Names of addresses that a run keeps, for files that begin later. A host has hundreds of containers; those that come
/// and go for weeks are not to fill its memory.
pub const NAMES_MAX: usize = 16_384;
