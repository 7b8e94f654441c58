//! Report of a recorder.

use std::path::PathBuf;

use super::look_back::LookBackReport;

/// Report of a recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecorderReport {
    /// Files that were begun.
    pub files: u64,
    /// Bytes of files with headers and padding, without bytes that were cut off after a failed write.
    pub bytes: u64,
    /// Blocks that the ring's writer overwrote while they were written to disk. Padding hides them in the files.
    pub torn_blocks: u64,
    /// Blocks that were copied first because the ring's writer was near.
    pub copied_blocks: u64,
    /// Bytes of files before they were compressed; 0 without compression.
    pub plain_bytes: u64,
    /// Pieces that were stored uncompressed in compressed files, because no thread was free.
    pub stored_blocks: u64,
    /// Report of the look-back, if it was requested.
    pub look_back: Option<LookBackReport>,
    /// Why it could not write in the fastest way, if so.
    pub note: Option<String>,
    /// One report for each directory.
    pub volumes: Vec<VolumeReport>,
}

/// Result for one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeReport {
    /// The directory.
    pub directory: PathBuf,
    /// Bytes written there.
    pub bytes: u64,
    /// Files that were deleted to keep within the quota.
    pub deleted_files: u64,
    /// Bytes of the deleted files.
    pub deleted_bytes: u64,
    /// Why the volume was left out, if it was.
    pub error: Option<String>,
}
