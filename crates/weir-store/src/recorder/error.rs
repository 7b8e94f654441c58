//! Why a recorder cannot begin, or go on.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a recorder cannot begin, or go on.
#[derive(Debug, Error)]
pub enum RecorderError {
    /// There are no threads to compress.
    #[error(
        "compressing: there can be no thread for it, or zstd refuses its level; record without --compress"
    )]
    Compression {
        /// The error of the kernel or of zstd.
        #[source]
        source: io::Error,
    },
    /// The directory is not there, or cannot be used.
    #[error("{}: cannot record into this directory; it must be there and writable", directory.display())]
    Directory {
        /// Which.
        directory: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another recorder has it.
    #[error(
        "{}: another recorder writes there; give this one a directory of its own, or end the other",
        directory.display()
    )]
    Taken {
        /// Which.
        directory: PathBuf,
    },
    /// A directory is named twice.
    #[error("{}: named twice; each directory is a volume of its own", directory.display())]
    Twice {
        /// Which.
        directory: PathBuf,
    },
    /// The quota has no room for a file of each ring.
    #[error(
        "{}: a quota of {} is too small: each ring ({rings} here) has a file open; give at least {}",
        directory.display(), size(*quota), size(*least)
    )]
    Quota {
        /// Where.
        directory: PathBuf,
        /// Bytes that files may have.
        quota: u64,
        /// Rings that are recorded.
        rings: usize,
        /// Bytes that would do.
        least: u64,
    },
    /// No directory takes files any more.
    #[error(
        "{}: cannot write there any more, and no other directory is left; what it kept before is whole{}",
        directory.display(), completing(left_open)
    )]
    Write {
        /// The last one that failed.
        directory: PathBuf,
        /// Directories with files that could not be completed, and have the names of open ones.
        left_open: Vec<PathBuf>,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Advice where files are left open.
fn completing(left_open: &[PathBuf]) -> String {
    let names: Vec<_> = left_open.iter().map(|path| path.display().to_string()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; weir index {} completes the files named .open", names.join(" ")),
    }
}

/// `32MiB`, as it is typed, where the size is whole in that unit.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    whole.map_or_else(
        || format!("{bytes} bytes"),
        |(shift, unit)| format!("{}{unit}", bytes >> shift),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_that_is_too_small_is_told_in_the_units_of_the_flag() {
        let (quota, least) = (12 << 20, 32 << 20);
        let text =
            RecorderError::Quota { directory: "d".into(), quota, rings: 2, least }.to_string();
        assert!(text.contains("of 12MiB is") && text.ends_with("at least 32MiB"), "{text}");
        assert_eq!([size(3 << 30), size(1001)], ["3GiB", "1001 bytes"]);
    }
}
