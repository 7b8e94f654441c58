//! A file that is being written.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use weir_consumer::Count;
use weir_disk::{ALIGN_BYTES, Buffer, Disk, Files};

use crate::compressed::{self, Frame};
use crate::index;
use crate::limits::{PREALLOCATE_BYTES, PREALLOCATE_PIECE_BYTES};
use crate::names::{Names, Told};

/// A file that is being written.
pub struct OpenFile<D: Disk> {
    pub file: Arc<D::File>,
    /// Its name while it is written.
    pub path: PathBuf,
    /// Its name from then on.
    pub final_path: PathBuf,
    pub index: Option<index::Writer>,
    pub volume: usize,
    pub began: Instant,
    /// When the first frame was to go there, nanoseconds since the Unix epoch.
    pub start_ns: u64,
    /// Where the next piece goes.
    pub end: u64,
    /// Up to where it is preallocated, or will be, and up to where it is for sure.
    pub ahead_end: u64,
    pub allocated_end: u64,
    /// The file system cannot preallocate, or has no space for it.
    pub is_preallocation_refused: bool,
    /// There may be something behind its end that has to be cut off.
    pub has_excess: bool,
    /// It is being cut off at its end: nothing goes there meanwhile.
    pub is_being_cut: bool,
    /// A large piece has come since it was last looked at.
    pub is_busy: bool,
    /// The same before compression, and its frames so far.
    pub plain_end: u64,
    pub frames_made: Vec<Frame>,
    /// Interfaces described in it.
    pub interfaces: u32,
    /// Names of addresses in it.
    pub told: Told,
    /// Frames in it that are confirmed, and those that were lost on the way to it.
    pub frames: u64,
    pub lapped: u64,
    /// Bytes written to it.
    pub written: u64,
    /// Writes under way.
    pub pending: usize,
    /// A write failed here: the data behind it is cut off.
    pub broken_at: Option<u64>,
    /// Pieces that came out of turn, from a volume that had failed, and their frames: they are settled before others
    /// that lie before them.
    pub out_of_turn: Vec<(u64, Count)>,
    /// No more goes there: once nothing is under way, it is complete.
    pub is_closing: bool,
    /// Its statistics are on their way: nothing comes behind them.
    pub has_statistics: bool,
}

impl<D: Disk> OpenFile<D> {
    /// A write failed at this byte, so that the file ends there. Returns the count of frames that were safely in
    /// it and are not any more.
    pub fn break_at(&mut self, at: u64) -> Count {
        let broken = self.broken_at.map_or(at, |broken| broken.min(at));
        (self.broken_at, self.is_closing) = (Some(broken), true);
        let mut lost = Count::default();
        for (_, count) in self.out_of_turn.extract_if(.., |(at, _)| *at >= broken) {
            lost += count;
        }
        self.frames -= lost.frames;
        lost
    }

    /// Bytes that were written to it and are cut off when it is completed, because a write before them failed.
    pub fn lost_bytes(&self) -> u64 {
        self.broken_at.map_or(0, |broken| self.written.saturating_sub(broken))
    }

    /// Bytes that it takes of a quota.
    pub fn taken(&self) -> u64 {
        self.end.max(self.ahead_end)
    }

    /// Whether a piece of `length` bytes asks for preallocation, of a file of at most `limit` bytes. If so: from
    /// where, and how much.
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

    /// It will be preallocated up to here.
    pub fn set_ahead(&mut self, end: u64) {
        (self.ahead_end, self.has_excess) = (end, true);
    }

    /// Result of a preallocation up to `end`.
    pub fn preallocated(&mut self, end: u64, is_done: bool) {
        if is_done {
            self.allocated_end = self.allocated_end.max(end);
        } else {
            // A part of it may be there, until the file is cut off.
            (self.is_preallocation_refused, self.ahead_end) = (true, self.allocated_end);
        }
    }

    /// Whether the space behind its end is to be cut off: no large piece has come since the last
    /// look.
    pub fn is_idle(&mut self) -> bool {
        let was_busy = std::mem::take(&mut self.is_busy);
        !was_busy && self.pending == 0 && self.has_excess && !self.is_being_cut
    }

    /// Result of cutting it off at its end.
    pub fn was_cut(&mut self, is_done: bool) {
        self.is_being_cut = false;
        if is_done {
            (self.ahead_end, self.allocated_end, self.has_excess) = (self.end, self.end, false);
        }
    }

    /// Appends the names of addresses that have come since, before a piece of `length` bytes, as far as there is room
    /// below `bytes_max` for all of that. Not before the first interface, as in [plain files](crate::FileWriter).
    pub fn add_names(
        &mut self,
        blocks: &mut Vec<u8>,
        names: &Names,
        length: usize,
        bytes_max: u64,
    ) {
        if self.interfaces == 0 || !self.told.is_behind(names) {
            return;
        }
        // With the padding behind these blocks.
        let others = (length + blocks.len() + 2 * ALIGN_BYTES) as u64;
        let room = bytes_max.saturating_sub(self.end + others);
        // Where there is none now, there may be some at the end, when no piece follows.
        self.told.append_new(names, room, blocks);
    }

    /// The last piece of a compressed file, with the table of all.
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

    /// Gives it its final name once nothing is under way.
    pub fn complete(mut self, files: &D::Files) -> std::io::Result<u64> {
        // Whatever becomes of the index: the file is read without it, too.
        if let Some(index) = &mut self.index {
            let _ = index.flush();
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
