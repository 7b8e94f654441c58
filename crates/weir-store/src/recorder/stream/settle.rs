//! Completed writes: whether their frames are kept, and retries.

use std::io;

use weir_consumer::{Count, Cursor};
use weir_disk::{ALIGN_BYTES, Bytes, Disk};

use super::super::Shared;
use super::super::file::Moved;
use super::super::gather;
use super::packed::{self, Placed};
use super::{Asked, Entry, Gap, State, Stream, What};
use crate::index::Piece;

/// The result for frames, as it is counted.
enum Fate {
    Kept,
    Lapped,
    Lost,
}

impl<D: Disk> Stream<D> {
    /// Takes the result of a write.
    pub fn completed(
        &mut self,
        entry: u64,
        result: io::Result<()>,
        bytes: Bytes,
        shared: &mut Shared<D>,
    ) {
        let Some(index) = entry.checked_sub(self.first_entry).map(|index| index as usize) else {
            return;
        };
        let Some(own) = self.entries.get_mut(index) else { return };
        let Some(file) = self.files.get_mut(&own.file) else { return };
        let length = super::length(&bytes);
        // A page of padding that replaces a written page was counted before.
        let has_grown = result.is_ok() && !matches!(own.what, What::Cover { is_written: true, .. });
        shared.volumes.end(file.volume, length, has_grown);
        if has_grown {
            shared.report.bytes += length as u64;
            file.written += length as u64;
        }
        match result {
            Ok(()) if own.first_page.is_some() => self.completed_rest(index, shared),
            Ok(()) => {
                own.state = State::Done;
                if let Bytes::Own(copy) = bytes {
                    shared.spare.give(copy);
                }
                if let What::Cover { of, .. } = own.what {
                    self.end_cover(of);
                }
            }
            Err(error) => {
                if !matches!(own.what, What::Cover { .. })
                    && file.broken_at.is_none()
                    && shared.volumes.wait_for_space(file.volume, &error, own.begun)
                {
                    own.state = State::Full(bytes);
                    self.full += 1;
                    return;
                }
                shared.volumes.fail(file.volume, error);
                shared.kept -= file.break_at(own.at);
                self.set_failed(index, Some(bytes));
            }
        }
    }

    /// Handles the end of a write from ring memory: if the written blocks are whole, their first page is written too,
    /// which makes them visible to readers of the file. Torn blocks are hidden.
    fn completed_rest(&mut self, leader: usize, shared: &mut Shared<D>) {
        let torn = self.torn_in_run(leader);
        if torn > 0 {
            return self.hide_torn(leader, torn, shared);
        }
        self.end_followers(leader);
        let own = &mut self.entries[leader];
        let (file, at) = (own.file, own.at);
        if let Some(first_page) = own.first_page.take() {
            let entry = self.first_entry + leader as u64;
            self.write(entry, file, at, Bytes::Own(first_page), shared);
        }
    }

    /// Retries writes that failed because the file system was full, once space was freed. If the volume has failed
    /// meanwhile, the writes fail.
    pub fn write_again(&mut self, shared: &mut Shared<D>) {
        let waits = |own: &Entry| matches!(own.state, State::Full(_));
        for at in 0..self.entries.len() {
            if self.full == 0 {
                return;
            }
            let own = &mut self.entries[at];
            let Some(file) = self.files.get_mut(&own.file).filter(|_| waits(own)) else { continue };
            if shared.volumes.is_full(file.volume) {
                continue;
            }
            self.full -= 1;
            let State::Full(bytes) = std::mem::replace(&mut own.state, State::Pending) else {
                continue;
            };
            if shared.volumes.has_failed(file.volume) {
                shared.kept -= file.break_at(own.at);
                self.set_failed(at, Some(bytes));
                continue;
            }
            let page = if own.first_page.is_some() { ALIGN_BYTES as u64 } else { 0 };
            let (file, place) = (own.file, own.at + page);
            self.write(self.first_entry + at as u64, file, place, bytes, shared);
        }
    }

    /// Fails all pending writes to this volume, and discards their tickets.
    pub fn give_up(&mut self, volume: usize, shared: &mut Shared<D>) {
        let is_asked = |entry: &Entry| matches!(entry.state, State::Pending | State::Full(_));
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            let Some(file) = self.files.get_mut(&entry.file).filter(|_| is_asked(entry)) else {
                continue;
            };
            if file.volume == volume {
                shared.kept -= file.break_at(entry.at);
                self.full -= usize::from(matches!(entry.state, State::Full(_)));
                self.set_failed(at, None);
            }
        }
        // Pieces that were written after a failed write are cut off with it. The file is dropped before their entries
        // are settled.
        for at in 0..self.entries.len() {
            let own = &self.entries[at];
            let is_frames = matches!(own.what, What::Frames { .. });
            if is_frames
                && matches!(own.state, State::Done)
                && self.is_cut_off(own)
                && self.files.get(&own.file).is_some_and(|file| file.volume == volume)
            {
                self.set_failed(at, None);
            }
        }
        let id = self.id;
        let first = self.first_entry;
        let entries = &self.entries;
        let files = &self.files;
        let is_awaited = |asked: &Asked| match asked {
            Asked::Write(entry) => {
                let own = entry.checked_sub(first).and_then(|at| entries.get(at as usize));
                own.is_some_and(|own| matches!(own.state, State::Pending))
            }
            Asked::Preallocation { file, .. } => {
                files.get(file).is_some_and(|file| file.volume != volume)
            }
        };
        shared.tickets.retain(|_, (stream, asked)| *stream != id || is_awaited(asked));
    }

    /// Records that a write of padding has ended.
    pub(super) fn end_cover(&mut self, torn: u64) {
        let index = torn.checked_sub(self.first_entry).map(|index| index as usize);
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            entry.covers = entry.covers.saturating_sub(1);
        }
    }

    /// Replaces a torn piece by padding, so that readers of the file skip it.
    pub(super) fn cover(&mut self, torn: usize, shared: &mut Shared<D>) {
        let entry = &mut self.entries[torn];
        entry.covers = 2;
        let (file, at, bytes) = (entry.file, entry.at, entry.bytes);
        let torn = self.first_entry + torn as u64;
        let [first, last] = gather::cover(bytes);
        let last_at = at + (bytes - last.filled()) as u64;
        for (page_at, buffer) in [(last_at, last), (at, first)] {
            let what = What::Cover { is_written: page_at != at, of: torn };
            // If this write fails, the file ends before the piece.
            let number = self.push(what, file, at, bytes, None);
            self.write(number, file, page_at, Bytes::Own(buffer), shared);
        }
    }

    /// Settles the oldest entries, up to the first one whose result is not known. `cursor` is `None` for a ring that
    /// is no longer read: its frames were counted as lapped when the ring was released.
    pub fn settle(&mut self, cursor: &mut Option<&mut Cursor>, shared: &mut Shared<D>) {
        while let Some(entry) = self.entries.front_mut() {
            let state = std::mem::replace(&mut entry.state, State::Done);
            match state {
                state @ (State::Pending
                | State::Packing
                | State::Packed { .. }
                | State::Full(_)) => {
                    entry.state = state;
                    break;
                }
                State::Failed(bytes) => {
                    if self.again(bytes, shared).is_some() {
                        break;
                    }
                    self.settle_front(cursor, Fate::Lost, shared);
                }
                State::Torn if entry.covers > 0 => {
                    entry.state = State::Torn;
                    break;
                }
                State::Torn => self.settle_front(cursor, Fate::Lapped, shared),
                State::Done => {
                    // A block that was written after a failed write is cut off with it.
                    if self.is_front_cut_off() && self.again(None, shared).is_some() {
                        break;
                    }
                    self.settle_front(cursor, Fate::Kept, shared);
                }
            }
        }
        self.complete_files(shared);
    }

    /// Retries the oldest entry, whose write has failed, on another volume. `None` if that is not possible.
    fn again(&mut self, bytes: Option<Bytes>, shared: &mut Shared<D>) -> Option<()> {
        let entry = self.entries.front()?;
        let What::Frames { block, highest, .. } = entry.what else { return None };
        let old = entry.file;
        // The bytes of a copied block are still there if its own write has failed.
        let block = block.or(entry.copied.filter(|_| bytes.is_none()));
        let bytes = match block {
            // The first page may be missing in the file, so the whole block is written again.
            Some(whole) => {
                let copy = self.copy(&whole, false, &mut shared.spare);
                if !self.reader.holds(whole.block) {
                    return None;
                }
                Bytes::Own(copy)
            }
            None => bytes?,
        };
        let number = self.first_entry;
        let plain_bytes = entry.plain_bytes;
        let headers_packed = entry.headers_packed;
        let placed = match bytes {
            Bytes::Own(buffer) if shared.pool.is_some() => {
                // The headers were those that the other file needed.
                let piece = packed::without_headers(buffer, headers_packed);
                self.place_packed(piece, plain_bytes, highest, shared).ok()?
            }
            Bytes::Own(buffer) => {
                let (file, at) = self.place(buffer.filled(), highest, shared)?;
                Placed { file, at, buffer, headers_bytes: 0, headers_packed: 0, plain_at: at }
            }
            Bytes::Ring { .. } | Bytes::Preallocate { .. } => return None,
        };
        let Placed { file, at, buffer, headers_bytes, headers_packed, plain_at } = placed;
        let bytes = Bytes::Own(buffer);
        self.release(old);
        if let Some(open) = self.files.get_mut(&file) {
            open.pending += 1;
        }
        let length = super::length(&bytes);
        // A block that was copied without its padding may be written with it now.
        let plain_bytes = if shared.pool.is_some() { plain_bytes } else { length };
        let entry = self.entries.front_mut()?;
        (entry.file, entry.at, entry.state, entry.first_page) = (file, at, State::Pending, None);
        (entry.bytes, entry.plain_at, entry.headers_bytes) = (length, plain_at, headers_bytes);
        (entry.headers_packed, entry.copied, entry.reads_ring) = (headers_packed, None, false);
        entry.plain_bytes = plain_bytes;
        entry.is_again = true;
        if let What::Frames { block, .. } = &mut entry.what {
            *block = None;
        }
        self.write(number, file, at, bytes, shared);
        Some(())
    }

    /// Returns whether the file of the oldest entry ends before it, because a write has failed.
    fn is_front_cut_off(&self) -> bool {
        self.entries.front().is_some_and(|entry| self.is_cut_off(entry))
    }

    fn is_cut_off(&self, entry: &Entry) -> bool {
        let broken_at = self.files.get(&entry.file).and_then(|file| file.broken_at);
        broken_at.is_some_and(|broken| entry.at >= broken)
    }

    /// Settles the oldest entry: counts its frames, and adds its piece to the index.
    fn settle_front(
        &mut self,
        cursor: &mut Option<&mut Cursor>,
        fate: Fate,
        shared: &mut Shared<D>,
    ) {
        let is_cut_off = self.is_front_cut_off();
        let Some(entry) = self.entries.pop_front() else { return };
        self.first_entry += 1;
        let (at, is_again) = (entry.at, entry.is_again);
        let (plain_at, plain_bytes) = (entry.plain_at, entry.plain_bytes as u32);
        let headers_bytes = entry.headers_bytes;
        match entry.what {
            What::Gap(gap, frames) => {
                if let Some(cursor) = cursor {
                    match gap {
                        Gap::Lapped => cursor.pass(frames),
                        Gap::Untriggered => cursor.let_pass(frames),
                        Gap::LappedUntriggered => cursor.pass_untriggered(frames),
                    }
                }
                return;
            }
            What::Blocks if is_cut_off => {}
            What::Blocks => self.tell_index(entry.file, Piece::headers(plain_at, plain_bytes)),
            What::Cover { .. } => {}
            What::Frames { frames, .. } if matches!(fate, Fate::Lapped) => {
                if let Some(cursor) = cursor {
                    cursor.lose(frames);
                }
                if entry.bytes == 0 {
                    return;
                }
                self.add_lapped(frames);
                if !is_cut_off {
                    self.tell_index(entry.file, Piece::nothing(plain_at, plain_bytes));
                }
            }
            What::Frames { frames, wire_bytes, piece, .. } => {
                let is_kept = matches!(fate, Fate::Kept) && !is_cut_off;
                let is_counted = cursor.is_some();
                if let Some(cursor) = cursor {
                    cursor.take(frames);
                    let count = Count { frames, wire_bytes };
                    shared.taken += count;
                    shared.kept += if is_kept { count } else { Count::default() };
                }
                if is_kept {
                    if let Some(file) = self.files.get_mut(&entry.file) {
                        file.frames += frames;
                        if is_again {
                            let count = Count { frames, wire_bytes };
                            file.out_of_turn.push(Moved { at, count, is_counted });
                        }
                    }
                    if headers_bytes > 0 {
                        let at = plain_at - u64::from(headers_bytes);
                        self.tell_index(entry.file, Piece::headers(at, headers_bytes));
                    }
                    self.tell_index(
                        entry.file,
                        Piece { at: plain_at, bytes: plain_bytes, ..piece },
                    );
                }
            }
        }
        self.release(entry.file);
    }

    /// Subtracts one from the number of a file's pending writes.
    pub(super) fn release(&mut self, file: u64) {
        if let Some(file) = self.files.get_mut(&file) {
            file.pending = file.pending.saturating_sub(1);
        }
    }
}
