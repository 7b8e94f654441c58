//! Settings of rotation: when a new file begins, and how many files there may be.

use std::num::NonZero;
use std::time::Duration;

/// Settings of rotation: when a new file begins, and how many files there may be. By default there is no rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// Most bytes of a file, unless its first frame alone needs more.
    pub file_bytes: Option<u64>,
    /// Longest period of a file, by the times of its frames. The first period begins with the run's first frame. For
    /// a period without frames, no file is created.
    pub file_time: Option<Duration>,
    /// With `file_time`, the output is complete after this number of files. With a size alone, this number of files
    /// is reused in turn.
    pub files_max: Option<NonZero<u32>>,
    /// Most bytes of all files together: the oldest files are deleted, but no file that is being written.
    pub quota_bytes: Option<u64>,
}

impl Rotation {
    /// Returns whether there may be a second file.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        self.file_bytes.is_some() || self.file_time.is_some()
    }

    /// Returns the number of files after which the output is complete.
    #[must_use]
    pub fn ends_after(&self) -> Option<NonZero<u32>> {
        self.files_max.filter(|_| self.file_time.is_some())
    }

    /// Returns the number of files that are reused in turn.
    #[must_use]
    pub fn ring_of(&self) -> Option<NonZero<u32>> {
        self.files_max.filter(|_| self.file_time.is_none())
    }

    /// Returns the largest size of a file, either as set or from the quota.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        // A quarter of the quota, so that a deletion removes at most a quarter of the data.
        let share = self.quota_bytes.map(|quota| quota / 4);
        self.file_bytes.or(share).unwrap_or(u64::MAX)
    }
}
