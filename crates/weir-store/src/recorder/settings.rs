//! Settings of a recorder.

use std::path::PathBuf;
use std::time::Duration;

use super::look_back::LookBack;

/// Settings of a recorder.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where files go: one directory a volume. Each must be there.
    pub directories: Vec<PathBuf>,
    /// Permissions of the files, less the umask.
    pub file_mode: u32,
    /// A file has so many bytes at most.
    pub file_bytes: u64,
    /// A file is written for so long at most.
    pub file_time: Option<Duration>,
    /// In each directory the recorded files have so many bytes at most: the oldest are deleted.
    pub quota: Option<Quota>,
    /// Files are compressed.
    pub compression: Option<Compression>,
    /// Only what lies around a trigger is written.
    pub look_back: Option<LookBack>,
    /// A volume is left out that does not answer a write for so long while another one works.
    pub stall_max: Duration,
    /// So long is an answer waited for at the end, when nothing more comes.
    pub end_stall_max: Duration,
    /// Whether files get an index.
    pub index: bool,
    /// Nothing is written before this says true. The kernel's workers keep the rights of the thread whose write
    /// started them. A process that gives up rights must do so before the first write.
    pub may_begin: fn() -> bool,
}

/// How files are compressed, piece by piece, by zstd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// 1 (fast) to 19 (small).
    pub level: i32,
    /// Threads that do so, 1 at least.
    pub threads: usize,
}

/// Bytes that files of a recorder may have in one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// So many.
    Bytes(u64),
    /// This share of the file system, 1 to 100.
    Percent(u8),
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            directories: Vec::new(),
            file_mode: 0o600,
            file_bytes: crate::limits::FILE_BYTES,
            file_time: None,
            quota: None,
            compression: None,
            look_back: None,
            stall_max: crate::limits::STALL_MAX,
            end_stall_max: crate::limits::END_STALL_MAX,
            index: true,
            may_begin: || true,
        }
    }
}
