//! Counters of data that was read, and of data that was skipped.

use std::fmt;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};

use crate::limits::{INDEX_PIECES_MAX, INDEX_SETS_BYTES_MAX};

/// Most notes that are kept. Further notes are only counted.
const NOTES_MAX: usize = 100;

/// A number of pieces, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    /// Number of pieces.
    pub pieces: u64,
    /// Their length in bytes.
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
    /// A file that cannot be read, and the reason.
    Unreadable(PathBuf, String),
    /// A file that no recorder made, the evidence for that, and whether the user named the file itself.
    Foreign(PathBuf, &'static str, bool),
    /// A file whose index has more pieces than are read from an index.
    LongIndex(PathBuf),
    /// A file, the offset of a piece in it, the number of its frames by the index, and the number found.
    Contradicted(PathBuf, u64, u64, u64),
    /// A file, the offset of an incomplete block at its end, and the number of bytes from there on.
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

/// Counters of an extraction: data that was read, that was skipped, and that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Files of the recording.
    pub files: u64,
    /// Files that were deleted between their listing and their opening.
    pub files_deleted: u64,
    /// Files that cannot be read, or not to the end, because of an error of the kernel.
    pub files_unreadable: u64,
    /// Files that are named like a recorder's and were not made by one.
    pub files_foreign: u64,
    /// Files without an index that can be read.
    pub indexes_missing: u64,
    /// Indexes that contradict their files.
    pub indexes_wrong: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Pieces of the files.
    pub pieces: u64,
    /// Pieces without wanted times, according to the index.
    pub skipped_by_time: Pieces,
    /// Pieces in which no frame can match the filter, by the index.
    pub skipped_by_index: Pieces,
    /// Pieces that were read. A piece without an index is read to learn its times, and again if it has wanted frames;
    /// the bytes of both reads count.
    pub read: Pieces,
    /// Frames that were examined.
    pub frames_read: u64,
    /// Frames that matched and were written.
    pub frames: u64,
    /// Invalid packet blocks, blocks that refer to an undescribed interface, and frames that an index lists and that do
    /// not exist.
    pub frames_damaged: u64,
    /// Frames that were written after later ones, because too many pieces overlap in time or an index was wrong.
    pub frames_late: u64,
    /// Bytes after the last whole block of a file.
    pub cut_off_bytes: u64,
    /// Earliest and latest known time of the frames of the files, in nanoseconds since the Unix epoch: from the
    /// indexes, and from examined frames that no index covers.
    pub times: Option<(u64, u64)>,
    /// Messages for the user: the first hundred.
    pub notes: Vec<Note>,
    /// Messages that were not kept because there are too many.
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

    /// Records that the files have frames of these times.
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
