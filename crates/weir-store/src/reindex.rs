//! Rebuilds indexes, and completes files that a killed recorder left.
//!
//! | module | contents |
//! |---|---|
//! | `check` | checks whether an index exists and matches its file |
//! | `build` | builds an index from the file itself |
//! | `recover` | renames files of a killed recorder to their final names |
//!
//! A file that a recorder is writing is not changed, nor is a file whose directory a recorder has locked meanwhile.

mod build;
mod check;
mod recover;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::catalog::{Catalog, Listed, State, directory_of};
pub use check::Fault;

/// Options of [`reindex`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Threads that read files; at least one.
    pub threads: usize,
    /// Rebuild all indexes, also those that match their files.
    pub all: bool,
    /// Change nothing; only report the necessary changes.
    pub check: bool,
}

/// The result for a file. With `check`, changes are only planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The index of the file was rebuilt, because the old one had this fault.
    Indexed {
        /// The recorded file.
        path: PathBuf,
        /// The fault of the old index.
        fault: Fault,
        /// Number of frames in the file; 0 with `check`, which does not count them.
        frames: u64,
        /// Offset of the first damage in the file. Not known with `check`.
        damaged_at: Option<u64>,
    },
    /// The file was given its final name, and cut off after its last whole block.
    Completed {
        /// The final path of the file.
        path: PathBuf,
        /// Bytes that were cut off.
        cut_bytes: u64,
    },
    /// The file had no frame, and was deleted.
    Deleted {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file was left unchanged, for a reason that is not a fault.
    LeftAlone {
        /// The path of the file.
        path: PathBuf,
        /// The reason.
        why: &'static str,
    },
    /// The file was not made by a recorder.
    Foreign {
        /// The path of the file.
        path: PathBuf,
        /// The evidence for that.
        why: &'static str,
    },
    /// The file could not be read, or its index could not be written.
    Failed {
        /// The path of the file.
        path: PathBuf,
        /// The kernel's error.
        why: String,
    },
}

impl Event {
    /// Returns whether this is a change, done or planned.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(self, Event::Indexed { .. } | Event::Completed { .. } | Event::Deleted { .. })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Indexed { path, fault, .. } => write!(f, "{}: index: {fault}", path.display()),
            Event::Completed { path, cut_bytes } => {
                write!(
                    f,
                    "{}: completed; cut off: {cut_bytes} bytes that were reserved, or written in part",
                    path.display()
                )
            }
            Event::Deleted { path } => write!(f, "{}: deleted: it has no frame", path.display()),
            Event::LeftAlone { path, why } => write!(f, "{}: left alone: {why}", path.display()),
            Event::Foreign { path, why } => write!(f, "{}: no index: {why}", path.display()),
            Event::Failed { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

/// The result of [`reindex`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of files that were examined.
    pub files: u64,
    /// Bytes of recorded files that were read.
    pub bytes_read: u64,
    /// Pieces in the rebuilt indexes.
    pub pieces: u64,
    /// Frames in these pieces.
    pub frames: u64,
    /// The results, in the order of the files.
    pub events: Vec<Event>,
    /// Whether the work was stopped before all files were done.
    pub is_stopped: bool,
}

/// Completes the files that killed recorders left, and builds indexes that are missing or do not match.
///
/// Once `stop` returns true, the function ends between two blocks, and a file whose work is unfinished is not
/// changed.
pub fn reindex(catalog: &Catalog, options: &Options, stop: &(dyn Fn() -> bool + Sync)) -> Report {
    let mut report = Report::default();
    let (open, mut files): (Vec<Listed>, Vec<Listed>) =
        catalog.files.iter().cloned().partition(|listed| listed.state != State::Complete);
    let mut directories: BTreeMap<PathBuf, Vec<Listed>> = BTreeMap::new();
    for listed in open {
        directories.entry(directory_of(&listed.path)).or_default().push(listed);
    }
    for (directory, left) in directories {
        report.files += left.len() as u64;
        recover::directory(&directory, &left, options, stop, &mut report, &mut files);
    }
    report.is_stopped = stop();
    index_all(&files, options, stop, &mut report);
    report
}

/// Builds the indexes of complete files, on several threads.
fn index_all(
    files: &[Listed],
    options: &Options,
    stop: &(dyn Fn() -> bool + Sync),
    report: &mut Report,
) {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..options.threads.max(1).min(files.len()) {
            scope.spawn(|| {
                while !stop() {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(listed) = files.get(at) else { break };
                    let outcome = build::file(listed, options, stop);
                    found.lock().unwrap_or_else(PoisonError::into_inner).push((at, outcome));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    report.is_stopped |= found.len() < files.len();
    for (_, outcome) in found {
        report.files += 1;
        report.bytes_read += outcome.bytes_read;
        report.pieces += outcome.pieces;
        report.frames += outcome.frames;
        report.is_stopped |= outcome.is_stopped;
        report.events.extend(outcome.event);
    }
}
