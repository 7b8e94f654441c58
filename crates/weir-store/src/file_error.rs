//! Errors of writing a capture file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;
use weir_consumer::ConsumerError;

/// Returns the advice for an output without room.
fn making_room(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::FileTooLarge => {
            "raise the limit of file sizes (ulimit -f), or have more files (--rotate-size)"
        }
        _ => "free space, or write elsewhere",
    }
}

/// The reason why a capture file cannot be written.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be created.
    #[error("{path}: cannot be made; {}", way_to_create(path, source))]
    Create {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The disk is full, or a quota or size limit is reached.
    #[error(
        "{path}: no room; the {kept} frames before are whole and readable; {}",
        making_room(source)
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Frames that the file contains.
        kept: u64,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The reader of the pipe has gone.
    #[error("{path}: the reader of the pipe has gone after {kept} frames")]
    PipeClosed {
        /// The name of the pipe.
        path: PathBuf,
        /// Frames that were written to the pipe.
        kept: u64,
    },
    /// The reader of the pipe is still there, but has read nothing for too long.
    #[error("{path}: the reader of the pipe takes nothing any more, after {kept} frames")]
    Stalled {
        /// The name of the pipe.
        path: PathBuf,
        /// Frames that were written to the pipe.
        kept: u64,
    },
    /// Any other failure.
    #[error("{path}: cannot be written; the {kept} frames before are whole and readable")]
    Write {
        /// The file.
        path: PathBuf,
        /// Frames in it.
        kept: u64,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The writes succeeded, but the disk reported an error afterwards.
    #[error(
        "{path}: the disk could not keep all of the {frames} frames that it took; look at what is there (capinfos), \
         free space, or write elsewhere"
    )]
    Sync {
        /// The file.
        path: PathBuf,
        /// Frames that were written.
        frames: u64,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A name whose time format is not valid.
    #[error(
        "{path}: the name says no time; what begins with a % in it is as in strftime, such as \
         trace-%Y%m%d-%H%M%S.pcapng, and %% is a % (no fractions, and no /)"
    )]
    TimeFormat {
        /// The name.
        path: PathBuf,
    },
    /// A name whose time format gives the same name for successive periods.
    #[error(
        "{path}: files of {period:?} would have the same name; say more of the time in it, such as \
         trace-%Y%m%d-%H%M%S.pcapng, or give a size, too (-C), which puts numbers behind it"
    )]
    SameName {
        /// The name.
        path: PathBuf,
        /// The time after which a new file begins.
        period: Duration,
    },
    /// The requested number of files is complete. This is not a failure.
    #[error("{path}: all files are complete (--rotate-files {files})")]
    Complete {
        /// The name given by the user.
        path: PathBuf,
        /// The number of files.
        files: u32,
    },
    /// Link types that cannot be in one file.
    #[error(
        "{path}: a pcapng file that every tool reads has one link type, but {first} and {second} differ; a pipe takes \
         one: write to a file (--write NAME.pcapng makes one for each link type), or capture them with two runs"
    )]
    LinkTypes {
        /// The file.
        path: PathBuf,
        /// The first interface of the file.
        first: String,
        /// An interface of another link type.
        second: String,
    },
}

/// Returns the remedy for a file that cannot be created.
fn way_to_create(path: &Path, why: &io::Error) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match (why.kind(), folder) {
        (io::ErrorKind::NotFound, Some(folder)) if !folder.exists() => {
            let folder = folder.display();
            format!(
                "the folder {folder} is missing: make it (`mkdir -p {folder}`), or name another"
            )
        }
        (io::ErrorKind::IsADirectory, _) => {
            "this names a folder, and what is written is a file: name a file".to_owned()
        }
        _ if why.raw_os_error() == Some(Errno::MFILE.raw_os_error()) => {
            "this process has too many open files: raise the limit (ulimit -n)".to_owned()
        }
        _ => "choose another --write PATH, or make the folder writable".to_owned(),
    }
}

impl From<FileError> for ConsumerError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::PipeClosed { .. } => ConsumerError::ReaderGone(error.into()),
            FileError::Stalled { .. } => ConsumerError::ReaderStalled(error.into()),
            FileError::Complete { .. } => ConsumerError::Complete(error.into()),
            error => ConsumerError::Output(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_for_a_file_that_cannot_be_made_depends_on_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let told = |path: &Path, kind: io::ErrorKind| {
            FileError::Create { path: path.into(), source: kind.into() }.to_string()
        };
        let no_folder = told(&missing.join("a.pcapng"), io::ErrorKind::NotFound);
        assert!(no_folder.contains(&format!("(`mkdir -p {}`)", missing.display())), "{no_folder}");
        let is_folder = told(folder.path(), io::ErrorKind::IsADirectory);
        assert!(is_folder.ends_with("name a file"), "{is_folder}");
        let source = Errno::MFILE.into();
        let many = FileError::Create { path: missing.clone(), source }.to_string();
        assert!(many.ends_with("(ulimit -n)"), "{many}");
        for kind in [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied] {
            let other = told(&missing, kind);
            assert!(other.ends_with("make the folder writable"), "{other}");
        }
    }
}
