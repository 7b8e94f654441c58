//! Limits of exports.

/// Records of a batch, at most.
pub const BATCH_RECORDS_MAX: usize = 1024;
/// Batches that wait for one export: 128 Ki records, 16 MiB.
pub const BATCHES_MAX: usize = 128;
