//! Settings of a recorder.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::look_back::LookBack;

/// Settings of a recorder.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directories for the files, one for each volume. They must exist.
    pub directories: Vec<PathBuf>,
    /// Permissions of the files, less the umask.
    pub file_mode: u32,
    /// The most bytes of a file.
    pub file_bytes: u64,
    /// The longest time for which a file is written.
    pub file_time: Option<Duration>,
    /// The most bytes of all recorded files in each directory. The oldest files are deleted to keep it.
    pub quota: Option<Quota>,
    /// Compression of the files, if any.
    pub compression: Option<Compression>,
    /// Write only frames around a trigger.
    pub look_back: Option<LookBack>,
    /// A volume is left out if it has not answered a write for this time while another one works.
    pub stall_max: Duration,
    /// The longest wait for an answer at the end, when no more frames come.
    pub end_stall_max: Duration,
    /// The wall clock, in nanoseconds since the Unix epoch. Files are named after it, and it is the time of their
    /// statistics. It may jump: durations are measured by another clock.
    pub now: fn() -> u64,
    /// Whether files get an index.
    pub index: bool,
    /// Nothing is written before this returns true. The kernel's io_uring workers keep the privileges of the thread
    /// whose write started them, so a process that drops privileges must do so before the first write.
    pub may_begin: fn() -> bool,
}

/// Compression of files by zstd, each piece by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// 1 (fast) to 19 (small).
    pub level: i32,
    /// Threads that compress, at least 1.
    pub threads: usize,
}

/// The most bytes of a recorder's files in one directory.
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
        }
    }
}

/// The system's clock; 0 if it is before 1970.
fn wall_clock_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}
