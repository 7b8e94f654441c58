//! Frames that were copied from a ring and wait for their turn.

use weir_frame::record::Outline;
use weir_ring::{Batch, Poll, RingError, Words};

use super::lateness::{Lateness, RingClock};
use super::notes::Notes;
use crate::counted::Count;
use crate::lanes::Lane;
use crate::numbering::Numbering;
use crate::sink::Run;

/// Frames that were copied from a ring.
#[derive(Default)]
pub(super) struct Copied {
    batch: Batch,
    /// Bytes of the batch that were delivered.
    used: usize,
    /// The next record; `None` if all of the batch was delivered.
    next: Option<Outline>,
    pub(super) notes: Notes,
    clock: RingClock,
}

impl Copied {
    /// Whether there is a copied frame that was not delivered.
    pub(super) fn is_waiting(&self) -> bool {
        self.next.is_some()
    }

    /// Returns the offset of the next record in the batch.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the records from offset `begin` on that were taken.
    pub(super) fn taken_since(&self, begin: usize) -> &[u8] {
        &self.batch.block_bytes()[begin..self.used]
    }

    fn peek(&mut self) {
        self.next = Outline::read(&self.batch.block_bytes()[self.used..]).ok();
    }

    pub(super) fn next_ns(&self) -> Option<u64> {
        self.next.map(|next| next.ts_ns)
    }

    /// Takes at most `frames_max` frames with timestamps up to `until_ns`.
    pub(super) fn take(
        &mut self,
        until_ns: u64,
        frames_max: u64,
        lateness: &mut Lateness,
    ) -> Run<'_> {
        let (begin, mut count) = (self.used, Count::default());
        while let Some(next) = self.next.filter(|next| next.ts_ns <= until_ns)
            && count.frames < frames_max
        {
            lateness.pass(&mut self.clock, next.ts_ns);
            count += Count::one(next.wire_len);
            self.used += next.block_bytes as usize;
            self.peek();
        }
        Run { block_bytes: &self.batch.block_bytes()[begin..self.used], count }
    }
}

impl<M: Words> Lane<Copied, M> {
    /// Copies frames of the ring if all copied frames were delivered. Returns whether there is a frame to deliver.
    pub(super) fn fill(
        &mut self,
        numbering: &mut Numbering,
        chunk_bytes: u32,
    ) -> Result<bool, RingError> {
        if self.cursor.is_read() {
            // The feed has left, and its last frame is within the batch.
            self.work.next = None;
        }
        while self.work.next.is_none() && !self.cursor.has_ended() {
            self.work.batch.set_chunk_bytes(chunk_bytes);
            match self.cursor.poll(&mut self.work.batch)? {
                Poll::Frames(_) => {
                    self.renumber(numbering)?;
                    self.work.used = 0;
                    self.work.peek();
                }
                Poll::Lapped(_) | Poll::Closed => {}
                Poll::Empty => break,
            }
        }
        Ok(self.work.next.is_some())
    }

    /// Replaces the interface numbers in the batch's records by those of the output.
    fn renumber(&mut self, numbering: &mut Numbering) -> Result<(), RingError> {
        let Lane { cursor, work: Copied { batch, .. }, key, .. } = self;
        let highest = batch.highest_interface_id();
        let numbers = numbering.numbers(*key, cursor.reader().ring(), highest)?;
        if (0..=highest).zip(numbers).any(|(id, number)| id != *number) {
            batch.renumber(|id| numbers[id as usize]);
        }
        Ok(())
    }
}
