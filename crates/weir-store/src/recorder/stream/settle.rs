//! Writes that are over: what became of their frames, and what is tried again.

use std::io;

use weir_consumer::{Count, Cursor};
use weir_disk::{Bytes, Disk};

use super::super::Shop;
use super::super::gather;
use super::{Gap, State, Stream, What};
use crate::index::Piece;

/// What became of frames.
enum Fate {
    Kept,
    Lapped,
    Lost,
}

impl<D: Disk> Stream<D> {
    /// A write is over.
    pub fn completed(
        &mut self,
        entry: u64,
        result: io::Result<()>,
        bytes: Bytes,
        shop: &mut Shop<D>,
    ) {
        let Some(own) = self.entries.get_mut((entry - self.first_entry) as usize) else { return };
        let Some(file) = self.files.get_mut(&own.file) else { return };
        shop.volumes.end(file.volume);
        let block = match own.what {
            What::Frames { block, .. } => block.map(|whole| whole.block),
            _ => None,
        };
        if result.is_ok()
            && block.is_some_and(|block| self.reader.holds(block))
            && let Some(first_page) = own.first_page.take()
        {
            // What is there is whole and stays so: readers of the file may see it.
            let (file, at) = (own.file, own.at);
            return self.write(entry, file, at, Bytes::Own(first_page), shop);
        }
        let is_hidden = own.first_page.is_some();
        own.state = match result {
            Ok(()) if is_hidden && block.is_some_and(|block| !self.reader.holds(block)) => {
                State::Torn
            }
            Ok(()) => State::Done,
            Err(error) => {
                shop.volumes.fail(file.volume, error);
                file.broken_at = Some(file.broken_at.map_or(own.at, |at| at.min(own.at)));
                file.is_closing = true;
                State::Failed(bytes)
            }
        };
        if matches!(own.state, State::Torn) {
            shop.report.torn_blocks += 1;
            let (file, at, bytes) = (own.file, own.at, own.bytes);
            self.cover(file, at, bytes, shop);
        }
    }

    /// Hides a torn piece from readers of the file.
    fn cover(&mut self, file: u64, at: u64, bytes: usize, shop: &mut Shop<D>) {
        let [first, last] = gather::cover(bytes);
        let last_at = at + (bytes - last.filled()) as u64;
        for (page_at, buffer) in [(last_at, last), (at, first)] {
            // Where it fails, the file ends before the piece.
            let number = self.push(What::Cover, file, at, bytes, None);
            self.write(number, file, page_at, Bytes::Own(buffer), shop);
        }
    }

    /// Settles what is known of the oldest entries. Without a cursor, those of a ring that is read no more: what there
    /// is of frames among them was counted as lapped when the ring was let go.
    pub fn settle(&mut self, cursor: &mut Option<&mut Cursor>, shop: &mut Shop<D>) {
        while let Some(entry) = self.entries.front_mut() {
            let state = std::mem::replace(&mut entry.state, State::Done);
            match state {
                State::Pending => {
                    entry.state = State::Pending;
                    break;
                }
                State::Failed(bytes) => {
                    if let Some(bytes) = self.again(bytes, shop) {
                        drop(bytes);
                        self.settle_front(cursor, Fate::Lost, shop);
                    } else {
                        break;
                    }
                }
                State::Torn => self.settle_front(cursor, Fate::Lapped, shop),
                State::Done => self.settle_front(cursor, Fate::Kept, shop),
            }
        }
        self.complete_files(shop);
    }

    /// Tries the oldest entry, whose write has failed, on another volume. Gives its bytes back where that cannot be.
    fn again(&mut self, bytes: Bytes, shop: &mut Shop<D>) -> Option<Bytes> {
        let entry = self.entries.front()?;
        let What::Frames { block, highest, .. } = entry.what else { return Some(bytes) };
        let (old, length) = (entry.file, entry.bytes);
        let bytes = match block {
            // Its first page may have been written or not: all of it once more.
            Some(whole) => {
                let copy = self.copy(&whole, false);
                if !self.reader.holds(whole.block) {
                    return Some(bytes);
                }
                Bytes::Own(copy)
            }
            None => bytes,
        };
        let number = self.first_entry;
        let Some((file, at)) = self.place(length, highest, shop) else { return Some(bytes) };
        self.release(old);
        if let Some(open) = self.files.get_mut(&file) {
            open.pending += 1;
        }
        let entry = self.entries.front_mut()?;
        (entry.file, entry.at, entry.state, entry.first_page) = (file, at, State::Pending, None);
        if let What::Frames { block, .. } = &mut entry.what {
            *block = None;
        }
        self.write(number, file, at, bytes, shop);
        None
    }

    /// The oldest entry is settled.
    fn settle_front(&mut self, cursor: &mut Option<&mut Cursor>, fate: Fate, shop: &mut Shop<D>) {
        let Some(entry) = self.entries.pop_front() else { return };
        self.first_entry += 1;
        let is_cut_off = self
            .files
            .get(&entry.file)
            .is_some_and(|file| file.broken_at.is_some_and(|broken| entry.at >= broken));
        let (at, bytes) = (entry.at, entry.bytes as u32);
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
            What::Blocks => self.tell_index(entry.file, Piece::headers(at, bytes)),
            What::Cover => {}
            What::Frames { frames, .. } if matches!(fate, Fate::Lapped) => {
                if let Some(cursor) = cursor {
                    cursor.lose(frames);
                }
                if bytes == 0 {
                    return;
                }
                self.add_lapped(frames);
                self.tell_index(entry.file, Piece::nothing(at, bytes));
            }
            What::Frames { frames, wire_bytes, piece, .. } => {
                let is_kept = matches!(fate, Fate::Kept) && !is_cut_off;
                if let Some(cursor) = cursor {
                    cursor.take(frames);
                    let count = Count { frames, wire_bytes };
                    shop.taken += count;
                    shop.kept += if is_kept { count } else { Count::default() };
                }
                if is_kept {
                    if let Some(file) = self.files.get_mut(&entry.file) {
                        file.frames += frames;
                    }
                    self.tell_index(entry.file, Piece { at, bytes, ..piece });
                }
            }
        }
        self.release(entry.file);
    }

    /// A write of a file is settled.
    fn release(&mut self, file: u64) {
        if let Some(file) = self.files.get_mut(&file) {
            file.pending = file.pending.saturating_sub(1);
        }
    }
}
