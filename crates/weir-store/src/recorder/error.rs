//! Errors of a recorder.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::settings::Quota;

/// The reason why a recorder cannot begin, or cannot continue.
#[derive(Debug, Error)]
pub enum RecorderError {
    /// No threads can be created to compress, or zstd refuses the level.
    #[error(
        "compressing: there can be no thread for it, or zstd refuses its level; record without --compress"
    )]
    Compression {
        /// The error of the kernel or of zstd.
        #[source]
        source: io::Error,
    },
    /// The directory does not exist, or cannot be used.
    #[error("{}: cannot record into this directory; it must be there and writable", directory.display())]
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another recorder has locked the directory.
    #[error(
        "{}: another recorder writes there; give this one a directory of its own, or end the other",
        directory.display()
    )]
    Taken {
        /// The directory.
        directory: PathBuf,
    },
    /// A directory is named twice.
    #[error("{}: named twice; each directory is a volume of its own", directory.display())]
    Twice {
        /// The directory.
        directory: PathBuf,
    },
    /// The quota is too small for a file of each ring.
    #[error(
        "{}: a quota of {}{} is too small: each ring ({rings} here) has a file open; give at least {}",
        directory.display(), size(*quota), share(*given), size(*least)
    )]
    Quota {
        /// The directory.
        directory: PathBuf,
        /// Bytes that the files may have.
        quota: u64,
        /// The quota as it was given.
        given: Option<Quota>,
        /// Rings that are recorded.
        rings: usize,
        /// The smallest sufficient quota in bytes.
        least: u64,
    },
    /// No directory can be written to any more.
    #[error(
        "{}: cannot write there any more, and no other directory is left; what it kept before is whole{}{}",
        directory.display(), completing(left_open), making_room(source)
    )]
    Write {
        /// The directory that failed last.
        directory: PathBuf,
        /// Directories with files that could not be completed, and still have the names of open files.
        left_open: Vec<PathBuf>,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Returns the advice for the user if files are left open.
fn completing(left_open: &[PathBuf]) -> String {
    let names: Vec<_> = left_open.iter().map(|path| path.display().to_string()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; weir index {} completes the files named .open", names.join(" ")),
    }
}

/// Returns the advice for a full disk.
fn making_room(why: &io::Error) -> &'static str {
    match why.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "; free space, or set --quota",
        io::ErrorKind::FileTooLarge => {
            "; raise the limit of file sizes (ulimit -f), or have smaller files (--rotate-size)"
        }
        _ => "",
    }
}

/// Returns the share of the file system that a quota is, if it was given as one.
fn share(given: Option<Quota>) -> String {
    match given {
        Some(Quota::Percent(percent)) => format!(", {percent} % of its file system,"),
        Some(Quota::Bytes(_)) | None => String::new(),
    }
}

/// Returns a size as the user types it, such as `32MiB`, in the largest unit in which it is a whole number.
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
    fn a_full_disk_is_told_with_what_makes_room() {
        let told = |kind: io::ErrorKind| {
            let (directory, left_open) = ("d".into(), Vec::new());
            RecorderError::Write { directory, left_open, source: kind.into() }.to_string()
        };
        for full in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            assert!(told(full).ends_with("is whole; free space, or set --quota"), "{full}");
        }
        assert!(told(io::ErrorKind::PermissionDenied).ends_with("is whole"));
    }

    #[test]
    fn a_quota_that_is_too_small_is_told_in_the_units_of_the_flag() {
        let (quota, least) = (12 << 20, 32 << 20);
        let told = |given| {
            let directory = "d".into();
            RecorderError::Quota { directory, quota, given, rings: 2, least }.to_string()
        };
        let text = told(Some(Quota::Bytes(quota)));
        assert!(told(Some(Quota::Percent(80))).contains("of 12MiB, 80 % of its file system, is"));
        assert!(text.contains("of 12MiB is") && text.ends_with("at least 32MiB"), "{text}");
        assert_eq!([size(3 << 30), size(1001)], ["3GiB", "1001 bytes"]);
    }
}
