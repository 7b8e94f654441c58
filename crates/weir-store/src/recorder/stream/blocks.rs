//! Whole blocks of a ring: written from ring memory, or from a copy.

use weir_consumer::Cursor;
use weir_disk::{Buffer, Bytes, Disk, Spare};
use weir_ring::{Whole, Words};

use super::super::Shared;
use super::super::gather;
use super::{Entry, State, Stream, What};

/// Blocks are copied before they are written if more than this share of a ring is unread: the ring's writer could
/// overwrite a block before its write has completed.
pub const NEAR: f64 = 0.5;
/// The largest share of a ring for which writes from ring memory may be pending.
pub const IN_PLACE: f64 = 0.25;
/// A block with less than this share of data is copied, without its padding.
const SPARSE: f64 = 0.75;

impl<D: Disk> Stream<D> {
    /// Writes a whole block from ring memory or from a copy, or submits it for compression.
    pub(super) fn take_block(&mut self, cursor: &Cursor, whole: &Whole, shared: &mut Shared<D>) {
        let piece = self.scan.finish(0, 0);
        let Whole { block, frames, wire_bytes, highest_interface_id: highest, .. } = *whole;
        if shared.pool.is_some() {
            return self.pack_block(whole, piece, shared);
        }
        let is_near = cursor.reader().fill() > NEAR || self.is_full_of_writes();
        let is_sparse = (whole.used as f64) < SPARSE * whole.bytes as f64;
        if !is_near && !is_sparse {
            let what = What::Frames { frames, wire_bytes, block: Some(*whole), highest, piece };
            return self.add_to_run(what, whole, shared);
        }
        self.submit_run(shared);
        let buffer = self.copy(whole, is_sparse, &mut shared.spare);
        if !self.reader.holds(block) {
            shared.spare.give(buffer);
            let what = What::Frames { frames, wire_bytes, block: None, highest, piece };
            self.entries.push_back(Entry { state: State::Torn, ..Entry::nowhere(what) });
            return self.add_lapped(frames);
        }
        shared.report.copied_blocks += u64::from(is_near);
        let what = What::Frames { frames, wire_bytes, block: None, highest, piece };
        self.submit(what, Bytes::Own(buffer), shared);
        if let Some(entry) = self.entries.back_mut() {
            entry.copied = Some(*whole);
        }
    }

    /// Returns whether writes from ring memory are pending for the share [`IN_PLACE`] of the ring.
    fn is_full_of_writes(&self) -> bool {
        let in_place = self
            .entries
            .iter()
            .filter(|entry| entry.reads_ring && matches!(entry.state, State::Pending));
        let in_place = in_place.count() + self.run.len();
        let most = (self.ring.geometry().data_blocks as f64 * IN_PLACE) as usize;
        in_place >= most
    }

    /// Copies a block; if it is sparse, without its padding.
    pub(super) fn copy(&self, whole: &Whole, is_sparse: bool, spare: &mut Spare) -> Buffer {
        let words = &self.ring.memory().words()[whole.at / 8..(whole.at + whole.bytes) / 8];
        let mut buffer = spare.take(whole.bytes);
        if is_sparse {
            buffer.fill_from_ring(&words[..whole.used.div_ceil(8)]);
            buffer.truncate(whole.used);
            gather::pad(&mut buffer);
        } else {
            buffer.fill_from_ring(words);
        }
        buffer
    }
}
