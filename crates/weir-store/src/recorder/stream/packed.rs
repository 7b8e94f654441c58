//! Compression of pieces before they are written. The pieces are written in the order in which they were read.

use std::sync::Arc;

use weir_disk::{Buffer, Bytes, Disk};
use weir_ring::Whole;

use super::super::Shared;
use super::super::pool::{Job, Packed, Plain};
use super::{Entry, State, Stream, What, highest};
use crate::compressed::{self, Frame};
use crate::index::Piece;

impl<D: Disk> Stream<D> {
    /// Submits a whole block for compression. If the ring's writer is close and no thread is free, the block is
    /// stored uncompressed.
    pub(super) fn pack_block(&mut self, whole: &Whole, piece: Piece, shared: &mut Shared<D>) {
        let Whole { frames, wire_bytes, highest_interface_id: highest, .. } = *whole;
        let what = What::Frames { frames, wire_bytes, block: Some(*whole), highest, piece };
        let memory = Arc::clone(self.ring.memory());
        let plain = Plain::Ring { memory, at: whole.at, bytes: whole.used };
        self.pack(what, plain, shared);
    }

    /// Submits a piece for compression; if no thread is free, stores it uncompressed in a zstd frame.
    pub(super) fn pack(&mut self, what: What, plain: Plain, shared: &mut Shared<D>) {
        let Some(pool) = &mut shared.pool else { return };
        let entry = self.first_entry + self.entries.len() as u64;
        let (stream, has_room) = (self.id, pool.has_room());
        self.entries.push_back(Entry { state: State::Packing, ..Entry::nowhere(what) });
        if has_room {
            return pool.ask(Job { stream, entry, plain });
        }
        shared.report.stored_blocks += 1;
        let own = match plain {
            Plain::Own(own) => own,
            Plain::Ring { memory, at, bytes } => {
                let words = &weir_ring::Words::words(&*memory)[at / 8..(at + bytes).div_ceil(8)];
                let mut own = Buffer::new(8 * words.len());
                own.fill_from_ring(words);
                own.truncate(bytes);
                own
            }
        };
        let buffer = compressed::store(own.as_slice());
        self.packed(Packed { stream, entry, plain_bytes: own.filled(), buffer }, shared);
    }

    /// Takes a compressed piece from the pool.
    pub fn packed(&mut self, packed: Packed, shared: &mut Shared<D>) {
        let Some(at) = packed.entry.checked_sub(self.first_entry) else { return };
        let Some(entry) = self.entries.get_mut(at as usize) else { return };
        let What::Frames { block, frames, .. } = &mut entry.what else { return };
        let frames = *frames;
        // The data that was compressed is valid if the ring still holds the block now.
        if block.take().is_some_and(|whole| !self.reader.holds(whole.block)) {
            entry.state = State::Torn;
            self.add_lapped(frames);
        } else {
            entry.state = State::Packed { buffer: packed.buffer, plain_bytes: packed.plain_bytes };
        }
        self.write_packed(shared);
    }

    /// Writes the compressed pieces before the first piece that is still being compressed.
    fn write_packed(&mut self, shared: &mut Shared<D>) {
        let mut at = 0;
        while let Some(entry) = self.entries.get_mut(at) {
            match std::mem::replace(&mut entry.state, State::Done) {
                State::Packing => {
                    entry.state = State::Packing;
                    return;
                }
                State::Packed { buffer, plain_bytes } => {
                    let number = self.first_entry + at as u64;
                    self.write_packed_entry(number, buffer, plain_bytes, shared);
                }
                other => entry.state = other,
            }
            at += 1;
        }
    }

    fn write_packed_entry(
        &mut self,
        number: u64,
        buffer: Buffer,
        plain_bytes: usize,
        shared: &mut Shared<D>,
    ) {
        let at = (number - self.first_entry) as usize;
        let highest = highest(&self.entries[at].what);
        let placed = self.place_packed(buffer, plain_bytes, highest, shared);
        let entry = &mut self.entries[at];
        match placed {
            Ok(placed) => {
                (entry.file, entry.at, entry.bytes) =
                    (placed.file, placed.at, placed.buffer.filled());
                (entry.headers_bytes, entry.plain_at) = (placed.headers_bytes, placed.plain_at);
                entry.headers_packed = placed.headers_packed;
                (entry.plain_bytes, entry.state) = (plain_bytes, State::Pending);
                if let Some(open) = self.files.get_mut(&placed.file) {
                    open.pending += 1;
                }
                self.write(number, placed.file, placed.at, Bytes::Own(placed.buffer), shared);
            }
            Err(buffer) => {
                (entry.bytes, entry.plain_bytes) = (buffer.filled(), plain_bytes);
                entry.state = State::Failed(Some(Bytes::Own(buffer)));
            }
        }
    }

    /// Reserves space in a file for a compressed piece, and inserts the blocks that the file needs before it.
    ///
    /// # Errors
    /// The piece itself, if all volumes have failed or the ring is corrupt.
    pub(super) fn place_packed(
        &mut self,
        buffer: Buffer,
        plain_bytes: usize,
        highest: u32,
        shared: &mut Shared<D>,
    ) -> Result<Placed, Buffer> {
        let piece_bytes = buffer.filled();
        let Some(id) = self.file_for(piece_bytes, shared) else { return Err(buffer) };
        let headers = match self.missing_headers(id, highest, buffer.filled(), shared) {
            Ok(headers) => headers,
            Err(error) => {
                // The ring is corrupt; the volume has not failed.
                self.corrupt = Some(error);
                return Err(buffer);
            }
        };
        let (Some(file), Some(pool)) = (self.files.get_mut(&id), &mut shared.pool) else {
            return Err(buffer);
        };
        let mut all = buffer;
        if !headers.is_empty() {
            let packed = pool.compress(&headers);
            let frame = Frame { bytes: packed.filled() as u32, plain_bytes: headers.len() as u32 };
            file.frames_made.push(frame);
            let mut both = Buffer::new(packed.filled() + all.filled());
            both.extend_from_slice(packed.as_slice());
            both.extend_from_slice(all.as_slice());
            file.frames_made
                .push(Frame { bytes: all.filled() as u32, plain_bytes: plain_bytes as u32 });
            all = both;
        } else {
            file.frames_made
                .push(Frame { bytes: all.filled() as u32, plain_bytes: plain_bytes as u32 });
        }
        let plain_at = file.plain_end + headers.len() as u64;
        file.plain_end = plain_at + plain_bytes as u64;
        shared.report.plain_bytes += (headers.len() + plain_bytes) as u64;
        let headers_packed = all.filled() - piece_bytes;
        let Some(at) = self.extend(id, all.filled(), shared) else { return Err(all) };
        let headers_bytes = headers.len() as u32;
        Ok(Placed { file: id, at, buffer: all, headers_bytes, headers_packed, plain_at })
    }
}

/// Returns a compressed piece without the headers before it, which have this length.
pub(super) fn without_headers(buffer: Buffer, headers_packed: usize) -> Buffer {
    if headers_packed == 0 {
        return buffer;
    }
    let mut piece = Buffer::new(buffer.filled() - headers_packed);
    piece.extend_from_slice(&buffer.as_slice()[headers_packed..]);
    piece
}

/// A compressed piece with its position in a file. `buffer` includes the headers before the piece.
pub(super) struct Placed {
    pub file: u64,
    pub at: u64,
    pub buffer: Buffer,
    /// Length of the headers before the piece, before compression.
    pub headers_bytes: u32,
    /// Their length after compression.
    pub headers_packed: usize,
    /// Offset of the piece in the uncompressed contents of the file.
    pub plain_at: u64,
}
