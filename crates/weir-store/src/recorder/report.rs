//! Report of a recorder.

use std::path::PathBuf;

use super::look_back::LookBackReport;

/// Report of a recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecorderReport {
    /// Files begun.
    pub files: u64,
    /// Bytes of files, headers and padding included; without those that a failed write before them cut off.
    pub bytes: u64,
    /// Blocks that the writer overtook while they were written, and that are hidden by padding.
    pub torn_blocks: u64,
    /// Blocks that were copied first because the writer was near.
    pub copied_blocks: u64,
    /// Bytes of files before they were compressed; 0 without compression.
    pub plain_bytes: u64,
    /// Pieces that are in compressed files as they were, because no thread was free.
    pub stored_blocks: u64,
    /// Result of looking back, if that was requested.
    pub look_back: Option<LookBackReport>,
    /// Why it did not write the fastest way, if so.
    pub note: Option<String>,
    /// By directory.
    pub volumes: Vec<VolumeReport>,
}

/// Result for one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeReport {
    /// Where.
    pub directory: PathBuf,
    /// Bytes written there.
    pub bytes: u64,
    /// Files that were deleted to keep within the quota.
    pub deleted_files: u64,
    /// Bytes of those.
    pub deleted_bytes: u64,
    /// Why it was left out, if it was.
    pub error: Option<String>,
}
