//! Pieces that are compressed before they are written: in the order in which they were read.

use std::sync::Arc;

use weir_disk::{Buffer, Bytes, Disk};
use weir_ring::Whole;

use super::super::Shared;
use super::super::pool::{Job, Packed, Plain};
use super::{Entry, State, Stream, What, highest};
use crate::compressed::{self, Frame};
use crate::index::Piece;

impl<D: Disk> Stream<D> {
    /// A whole block goes out compressed, or as it is where the writer is near and no thread is free.
    pub(super) fn pack_block(&mut self, whole: &Whole, piece: Piece, shared: &mut Shared<D>) {
        let Whole { frames, wire_bytes, highest_interface_id: highest, .. } = *whole;
        let what = What::Frames { frames, wire_bytes, block: Some(*whole), highest, piece };
        let memory = Arc::clone(self.ring.memory());
        let plain = Plain::Ring { memory, at: whole.at, bytes: whole.used };
        self.pack(what, plain, shared);
    }

    /// Has a piece compressed, and written in its turn.
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

    /// A piece is compressed.
    pub fn packed(&mut self, packed: Packed, shared: &mut Shared<D>) {
        let Some(at) = packed.entry.checked_sub(self.first_entry) else { return };
        let Some(entry) = self.entries.get_mut(at as usize) else { return };
        let What::Frames { block, frames, .. } = &mut entry.what else { return };
        let frames = *frames;
        // The data that the compressor read is valid if the ring still holds it now.
        if block.take().is_some_and(|whole| !self.reader.holds(whole.block)) {
            entry.state = State::Torn;
            self.add_lapped(frames);
        } else {
            entry.state = State::Packed { buffer: packed.buffer, plain_bytes: packed.plain_bytes };
        }
        self.write_packed(shared);
    }

    /// Writes compressed pieces, up to the first one that is not ready.
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

    /// The place in a file for a compressed piece, with the blocks that the file needs before it. Gives it back
    /// where no volume works.
    pub(super) fn place_packed(
        &mut self,
        buffer: Buffer,
        plain_bytes: usize,
        highest: u32,
        shared: &mut Shared<D>,
    ) -> Result<Placed, Buffer> {
        let Some(id) = self.file_for(buffer.filled(), shared) else { return Err(buffer) };
        let headers = match self.missing_headers(id, highest, buffer.filled(), shared) {
            Ok(headers) => headers,
            Err(error) => {
                // The ring's own fault, and no volume's.
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
        let Some(at) = self.extend(id, all.filled(), shared) else { return Err(all) };
        Ok(Placed { file: id, at, buffer: all, headers_bytes: headers.len() as u32, plain_at })
    }
}

/// Where a compressed piece goes, and with what.
pub(super) struct Placed {
    pub file: u64,
    pub at: u64,
    pub buffer: Buffer,
    /// Bytes of headers before it, as they were before they were compressed.
    pub headers_bytes: u32,
    /// Where it is in the file as it was before it was compressed.
    pub plain_at: u64,
}
