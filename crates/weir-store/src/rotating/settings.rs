//! When a file is followed by another one, and how many of them there may be.

use std::num::NonZero;
use std::time::Duration;

/// When a file is followed by another one, and how many of them there may be. The default: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotation {
    /// A file has so many bytes at most, unless its first frame alone takes more.
    pub file_bytes: Option<u64>,
    /// A file has the frames of so long a period at most, by their stamps. The first period begins with the run's first
    /// frame; one without frames has no file.
    pub file_time: Option<Duration>,
    /// With a time, the output is complete after so many files. With a size alone, the oldest is replaced then.
    pub files_max: Option<NonZero<u32>>,
    /// The files have so many bytes together at most: the oldest are deleted, but none that is being written.
    pub quota_bytes: Option<u64>,
}

impl Rotation {
    /// Whether there is ever another file.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        self.file_bytes.is_some() || self.file_time.is_some()
    }

    /// After how many files the output is complete.
    #[must_use]
    pub fn ends_after(&self) -> Option<NonZero<u32>> {
        self.files_max.filter(|_| self.file_time.is_some())
    }

    /// How many files are written in turn.
    #[must_use]
    pub fn ring_of(&self) -> Option<NonZero<u32>> {
        self.files_max.filter(|_| self.file_time.is_none())
    }

    /// The size of a file, with the share that a quota leaves for one.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        // Smaller ones, so that a deletion removes at most a quarter of the files.
        let share = self.quota_bytes.map(|quota| quota / 4);
        self.file_bytes.or(share).unwrap_or(u64::MAX)
    }
}
