//! The report of a recorder.

use std::path::PathBuf;

use super::look_back::LookBackReport;

/// The report of a recorder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecorderReport {
    /// Files that were created, without those that were removed because their first write had failed.
    pub files: u64,
    /// Bytes of files including headers and padding, without bytes that were cut off after a failed write.
    pub bytes: u64,
    /// Blocks that the ring's writer overwrote while they were written to disk. In the files they are replaced by
    /// padding.
    pub torn_blocks: u64,
    /// Blocks that were copied first because the ring's writer was close.
    pub copied_blocks: u64,
    /// Bytes of files before they were compressed; 0 without compression.
    pub plain_bytes: u64,
    /// Pieces that were stored uncompressed in compressed files, because no thread was free.
    pub stored_blocks: u64,
    /// The report of the look-back, if it is configured.
    pub look_back: Option<LookBackReport>,
    /// The reason why a slower method of writing was used, if so.
    pub note: Option<String>,
    /// One report for each directory.
    pub volumes: Vec<VolumeReport>,
}

/// The result for one directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeReport {
    /// The directory.
    pub directory: PathBuf,
    /// Bytes written to the directory.
    pub bytes: u64,
    /// Files that were deleted to keep within the quota.
    pub deleted_files: u64,
    /// Bytes of the deleted files.
    pub deleted_bytes: u64,
    /// The reason why the volume is no longer used, if so.
    pub error: Option<String>,
}
