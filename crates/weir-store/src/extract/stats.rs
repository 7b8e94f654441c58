//! Counts of data that was read, and of data that was skipped.

use std::fmt;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

use crate::limits::{INDEX_PIECES_MAX, INDEX_SETS_BYTES_MAX};

/// As many notes are kept; further ones are counted only.
const NOTES_MAX: usize = 100;

/// Pieces and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// How many.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Pieces {
    pub(super) fn add(&mut self, bytes: u64) {
        self.pieces += 1;
        self.bytes += bytes;
    }
}

impl AddAssign for Pieces {
    fn add_assign(&mut self, other: Pieces) {
        self.pieces += other.pieces;
        self.bytes += other.bytes;
    }
}

/// Messages for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A file, and why it cannot be read.
    Unreadable(PathBuf, String),
    /// A file that no recorder made, why that is clear, and whether it was named itself.
    Foreign(PathBuf, &'static str, bool),
    /// This index of a file has more pieces than are read of one.
    LongIndex(PathBuf),
    /// A piece of this file begins here and has other frames than its index says: said, and found.
    Contradicted(PathBuf, u64, u64, u64),
    /// This file ends at this place with half a block; so many bytes follow.
    CutOff(PathBuf, u64, u64),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Unreadable(path, why) => write!(f, "{}: cannot be read: {why}", path.display()),
            Note::Foreign(path, why, _) => write!(
                f,
                "{}: {why}; this makes a file that can be extracted from: weir capture file:{} --write NEW.pcapng",
                path.display(),
                path.display()
            ),
            Note::LongIndex(path) => write!(
                f,
                "{}: its index has more than {INDEX_PIECES_MAX} pieces, or {INDEX_SETS_BYTES_MAX} bytes of sets; what \
                 it tells beyond is read from the file",
                path.display()
            ),
            Note::Contradicted(path, at, said, found) => write!(
                f,
                "{}: the piece at byte {at} has {said} frames by its index, and {found} were found; this makes the \
                 index anew: weir index --all {}",
                path.display(),
                path.display()
            ),
            Note::CutOff(path, at, bytes) => write!(
                f,
                "{}: no whole block stands at byte {at}; the {bytes} bytes from there on are left out",
                path.display()
            ),
        }
    }
}

/// Counts of an extraction: bytes and pieces that were read, that need not be read, and that could
/// not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Files of the recording.
    pub files: u64,
    /// Files that were deleted between their listing and their opening.
    pub files_deleted: u64,
    /// Files that cannot be read, or not to the end, by an error of the kernel's.
    pub files_unreadable: u64,
    /// Files with the names of a recorder's that are none.
    pub files_foreign: u64,
    /// Files without an index that can be read.
    pub indexes_missing: u64,
    /// Indexes that contradict their files.
    pub indexes_wrong: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Pieces of the files.
    pub pieces: u64,
    /// Of other times, by the index.
    pub skipped_by_time: Pieces,
    /// Without anything that is wanted, by the index.
    pub skipped_by_index: Pieces,
    /// Read. Pieces without an index are read to learn their times, and read again if they have wanted frames: the
    /// bytes of both reads count.
    pub read: Pieces,
    /// Frames that were looked at.
    pub frames_read: u64,
    /// Frames that were wanted and went out.
    pub frames: u64,
    /// Blocks of frames that contradict themselves, or name an interface that is nowhere described, and frames that an
    /// index tells of and that are not there.
    pub frames_damaged: u64,
    /// Frames that went out behind later ones, because too many pieces overlap in time or an index was wrong.
    pub frames_late: u64,
    /// Bytes behind the last whole block of a file.
    pub cut_off_bytes: u64,
    /// Earliest and latest time of the frames of the files, as far as they are known: from the indexes, and from frames
    /// that were looked at because no index covers them. Nanoseconds since the Unix epoch.
    pub times: Option<(u64, u64)>,
    /// Messages for the user, the first hundred.
    pub notes: Vec<Note>,
    /// Notes beyond these.
    pub notes_left_out: u64,
}

impl Stats {
    pub(super) fn note(&mut self, note: Note) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        } else {
            self.notes_left_out += 1;
        }
    }

    /// The files have frames of these times.
    pub(super) fn has_times(&mut self, first_ns: u64, last_ns: u64) {
        let (first, last) = self.times.unwrap_or((first_ns, last_ns));
        self.times = Some((first.min(first_ns), last.max(last_ns)));
    }

    pub(super) fn cut_off(&mut self, path: &Path, at: u64, bytes: u64) {
        self.cut_off_bytes += bytes;
        self.note(Note::CutOff(path.into(), at, bytes));
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Stats) {
        self.files += other.files;
        self.files_deleted += other.files_deleted;
        self.files_unreadable += other.files_unreadable;
        self.files_foreign += other.files_foreign;
        self.indexes_missing += other.indexes_missing;
        self.indexes_wrong += other.indexes_wrong;
        self.bytes += other.bytes;
        self.pieces += other.pieces;
        self.skipped_by_time += other.skipped_by_time;
        self.skipped_by_index += other.skipped_by_index;
        self.read += other.read;
        self.frames_read += other.frames_read;
        self.frames += other.frames;
        self.frames_damaged += other.frames_damaged;
        self.frames_late += other.frames_late;
        self.cut_off_bytes += other.cut_off_bytes;
        if let Some((first_ns, last_ns)) = other.times {
            self.has_times(first_ns, last_ns);
        }
        other.notes.into_iter().for_each(|note| self.note(note));
        self.notes_left_out += other.notes_left_out;
    }
}
