//! A file that is being written.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use weir_consumer::Count;
use weir_disk::{ALIGN_BYTES, Buffer, Disk, Files};

use crate::catalog::index_path;
use crate::compressed::{self, Frame};
use crate::index;
use crate::limits::{PREALLOCATE_BYTES, PREALLOCATE_PIECE_BYTES};
use crate::names::{Names, WrittenNames};

/// A file that is being written.
pub struct OpenFile<D: Disk> {
    pub file: Arc<D::File>,
    /// The path of the file while it is being written.
    pub path: PathBuf,
    /// The path of the file once it is complete.
    pub final_path: PathBuf,
    pub index: Option<index::Writer>,
    pub volume: usize,
    pub began: Instant,
    /// Wall-clock time at which the file was begun, in nanoseconds since the Unix epoch. Its name may be later.
    pub start_ns: u64,
    /// Offset of the next piece.
    pub end: u64,
    /// End of the requested preallocation, and end of the confirmed one.
    pub ahead_end: u64,
    pub allocated_end: u64,
    /// Whether the file system cannot preallocate, or has no space for it.
    pub is_preallocation_refused: bool,
    /// Whether there may be preallocated space after the end of the file, which must be freed.
    pub has_excess: bool,
    /// Whether the file is being truncated at its end. Nothing is written to it meanwhile.
    pub is_being_cut: bool,
    /// Whether a large piece was written since the last call of [`is_idle`](Self::is_idle).
    pub is_busy: bool,
    /// For a compressed file: the end before compression, and the zstd frames so far.
    pub plain_end: u64,
    pub frames_made: Vec<Frame>,
    /// Interfaces described in the file.
    pub interfaces: u32,
    /// Names of addresses in the file.
    pub written_names: WrittenNames,
    /// Confirmed frames in the file, and frames that were lapped before they were written to it.
    pub frames: u64,
    pub lapped: u64,
    /// Bytes written to the file.
    pub written: u64,
    /// Pending writes.
    pub pending: usize,
    /// Offset of the first failed write. The data from there on is cut off.
    pub broken_at: Option<u64>,
    /// Pieces that were moved here from a failed volume. They are settled before pieces at lower offsets.
    pub out_of_turn: Vec<Moved>,
    /// Whether nothing more is written to the file. Without pending writes, it is then complete.
    pub is_closing: bool,
    /// Whether its statistics are being written, as its last blocks.
    pub has_statistics: bool,
}

/// A piece that was moved from a failed volume.
pub struct Moved {
    pub at: u64,
    pub count: Count,
    /// Whether its frames were counted as kept. Those of a ring that was released were counted as lapped.
    pub is_counted: bool,
}

impl<D: Disk> OpenFile<D> {
    /// Records that a write failed at this offset, so that the file ends there. Returns the confirmed frames that are
    /// lost by that.
    pub fn break_at(&mut self, at: u64) -> Count {
        let broken = self.broken_at.map_or(at, |broken| broken.min(at));
        (self.broken_at, self.is_closing) = (Some(broken), true);
        let mut lost = Count::default();
        for moved in self.out_of_turn.extract_if(.., |moved| moved.at >= broken) {
            self.frames -= moved.count.frames;
            // The index has the piece already. Without an index, the file is read from its beginning to its end.
            self.index = None;
            let _ = std::fs::remove_file(index_path(&self.final_path));
            lost += if moved.is_counted { moved.count } else { Count::default() };
        }
        lost
    }

    /// Returns the written bytes that will be cut off, because they are after a failed write; all of an empty file.
    pub fn lost_bytes(&self) -> u64 {
        let kept = if self.is_empty() { Some(0) } else { self.broken_at };
        kept.map_or(0, |kept| self.written.saturating_sub(kept))
    }

    /// Returns the bytes that count for the quota.
    pub fn taken(&self) -> u64 {
        self.end.max(self.ahead_end)
    }

    /// Returns offset and bytes to preallocate before a piece of `length` bytes is written; `None` if nothing is to
    /// be preallocated. The file may have at most `limit` bytes.
    pub fn ahead_of(&mut self, length: usize, limit: u64) -> Option<(u64, u64)> {
        self.is_busy |= length >= PREALLOCATE_PIECE_BYTES;
        let is_there = self.end + length as u64 + PREALLOCATE_BYTES / 2 <= self.ahead_end;
        let is_large = length >= PREALLOCATE_PIECE_BYTES && !self.is_closing;
        if self.is_preallocation_refused || is_there || !is_large {
            return None;
        }
        let at = self.taken();
        let bytes = limit.saturating_sub(at).min(PREALLOCATE_BYTES);
        let bytes = bytes - bytes % ALIGN_BYTES as u64;
        (bytes >= PREALLOCATE_PIECE_BYTES as u64).then_some((at, bytes))
    }

    /// Records that preallocation up to `end` was requested.
    pub fn set_ahead(&mut self, end: u64) {
        (self.ahead_end, self.has_excess) = (end, true);
    }

    /// Records the result of a preallocation up to `end`.
    pub fn preallocated(&mut self, end: u64, is_done: bool) {
        if is_done {
            self.allocated_end = self.allocated_end.max(end);
        } else {
            // A part of the space may stay allocated until the file is truncated.
            (self.is_preallocation_refused, self.ahead_end) = (true, self.allocated_end);
        }
    }

    /// Returns whether the space after the end must be freed, because no large piece was written since the last call.
    pub fn is_idle(&mut self) -> bool {
        let was_busy = std::mem::take(&mut self.is_busy);
        !was_busy && self.pending == 0 && self.has_excess && !self.is_being_cut
    }

    /// Records the result of truncating the file at its end.
    pub fn was_cut(&mut self, is_done: bool) {
        self.is_being_cut = false;
        if is_done {
            (self.ahead_end, self.allocated_end, self.has_excess) = (self.end, self.end, false);
        }
    }

    /// Appends new names of addresses to `blocks`, before a piece of `length` bytes: as many as still leave space for
    /// the piece below `bytes_max`. Names must not precede the first interface, as in [plain
    /// files](crate::FileWriter).
    pub fn add_names(
        &mut self,
        blocks: &mut Vec<u8>,
        names: &Names,
        length: usize,
        bytes_max: u64,
    ) {
        if self.interfaces == 0 || !self.written_names.is_behind(names) {
            return;
        }
        // Includes the padding after these blocks.
        let others = (length + blocks.len() + 2 * ALIGN_BYTES) as u64;
        let room = bytes_max.saturating_sub(self.end + others);
        // Names that do not fit now may fit at the end, when no piece follows.
        self.written_names.append_new(names, room, blocks);
    }

    /// Returns the last piece of a compressed file, followed by the seek table.
    pub fn last_piece(&mut self, packed: &Buffer, plain_bytes: usize) -> Buffer {
        let frame = Frame { bytes: packed.filled() as u32, plain_bytes: plain_bytes as u32 };
        self.frames_made.push(frame);
        self.plain_end += plain_bytes as u64;
        let table = compressed::seek_table(&self.frames_made);
        let mut both = Buffer::new(packed.filled() + table.filled());
        both.extend_from_slice(packed.as_slice());
        both.extend_from_slice(table.as_slice());
        both
    }

    /// Returns whether no frame is left in the file, because a write has failed. Its headers may have been written.
    /// Valid once no writes are pending: until then, frames are not confirmed.
    pub fn is_empty(&self) -> bool {
        self.broken_at.is_some_and(|broken| broken == 0 || self.frames == 0)
    }

    /// Completes the file once no writes are pending: truncates, syncs and renames it. Returns its length. An empty
    /// file is removed, because it has nothing to read.
    pub fn complete(mut self, files: &D::Files) -> std::io::Result<u64> {
        // An error is ignored, because the file can be read without its index.
        if let Some(index) = &mut self.index {
            let _ = index.flush();
        }
        if self.is_empty() {
            files.remove(&self.path)?;
            // Without its file, nothing reads the index.
            let _ = std::fs::remove_file(index_path(&self.final_path));
            return Ok(0);
        }
        let bytes = self.broken_at.unwrap_or(self.end);
        if self.broken_at.is_some() || self.has_excess {
            files.cut(&self.file, bytes)?;
        }
        files.sync(&self.file)?;
        files.rename(&self.path, &self.final_path)?;
        Ok(bytes)
    }
}
