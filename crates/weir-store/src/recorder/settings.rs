//! Settings of a recorder.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::look_back::LookBack;

/// Settings of a recorder.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directories for the files, one for each volume. They must exist.
    pub directories: Vec<PathBuf>,
    /// Permissions of the files, less the umask.
    pub file_mode: u32,
    /// Most bytes of a file.
    pub file_bytes: u64,
    /// Longest time for which a file is written.
    pub file_time: Option<Duration>,
    /// Most bytes of all recorded files in each directory. The oldest files are deleted to keep within this limit.
    pub quota: Option<Quota>,
    /// Compression of the files, if any.
    pub compression: Option<Compression>,
    /// The settings for writing only the frames around a trigger.
    pub look_back: Option<LookBack>,
    /// A volume is given up if it has not answered a write for this time while another volume works.
    pub stall_max: Duration,
    /// The longest wait for an answer at the end, when no more frames come.
    pub end_stall_max: Duration,
    /// Returns the wall clock, in nanoseconds since the Unix epoch, for the names of files and the times of their
    /// statistics. It may jump: durations are measured by another clock.
    pub now: fn() -> u64,
    /// Whether an index is written for each file.
    pub index: bool,
    /// Returns true once writing may begin. The kernel's io_uring workers keep the privileges of the thread
    /// whose write started them, so a process that drops privileges must do so before the first write.
    pub may_begin: fn() -> bool,
    /// Called once for each volume that fails, on the recorder's thread, with its directory and the error.
    pub volume_failed: fn(&Path, &io::Error),
}

/// Compression of files by zstd. Each piece is compressed separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Level: 1 (fast) to 19 (small).
    pub level: i32,
    /// Threads that compress, at least 1.
    pub threads: usize,
}

/// Most bytes of a recorder's files in one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the file system's size, 1 to 100.
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
            now: wall_clock_ns,
            index: true,
            may_begin: || true,
            volume_failed: |_, _| (),
        }
    }
}

/// Returns the time of the system's clock; 0 if it is before 1970.
fn wall_clock_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}
