//! Finding a place: where a new reader begins, and where one that was overtaken goes on.

use super::{NOWHERE, Poll, Reader, Tally};
use crate::Words;
use crate::error::RingError;
use crate::geometry::{EntryWord, WriterWord, seq_of};
use crate::sync::{Ordering, fence, load_acquire};

/// How often a reader that keeps being lapped while it looks for its new place tries again before it
/// says `Empty` and lets the caller breathe.
const RELOCATE_TRIES: u32 = if cfg!(loom) { 2 } else { 64 };

impl<M: Words> Reader<M> {
    /// Finds a position half a ring behind the writer, and returns the number of skipped frames.
    #[cold]
    pub(super) fn lapped_now(&mut self) -> Result<Poll, RingError> {
        let before = self.ordinal;
        // The claim of a block may be seen before the count of opened ones is: `seq` knows more.
        let claimed = load_acquire(self.entry(EntryWord::Seq)).saturating_sub(1) / 2;
        let opened = self.ring.writer_word(WriterWord::Opened).max(claimed);
        let target = self.safe_block(opened).max(self.block.saturating_add(1));
        if !self.relocate(target)? {
            return Ok(Poll::Empty);
        }
        // Every frame before the overtaken block's end had been read: nothing is lost.
        let missed = self.ordinal - before;
        if missed == 0 {
            return Ok(Poll::Empty);
        }
        self.lapped += missed;
        Ok(Poll::Lapped(missed))
    }

    /// The block that has the frame of this ordinal, or had it; of those that were opened.
    pub(super) fn block_of(&self, ordinal: u64, opened: u64) -> u64 {
        let kept = self.ring.geometry.data_blocks.min(opened);
        let begins_before = |block: &u64| {
            let entry = |word| &self.ring.words()[self.ring.geometry.entry_word(*block, word)];
            load_acquire(entry(EntryWord::Seq)) == seq_of(*block)
                && entry(EntryWord::FirstOrdinal).load(Ordering::Relaxed) <= ordinal
        };
        let found = (opened - kept..opened).rev().find(begins_before);
        found.unwrap_or_else(|| self.safe_block(opened))
    }

    /// Passes the frames before this ordinal, all of which are of the block that it stands in. Those that were
    /// overwritten from there on are lapped.
    pub(super) fn pass_to(&mut self, ordinal: u64) -> Result<(), RingError> {
        let mut passed = Tally::default();
        while self.ordinal < ordinal {
            let most = (ordinal - self.ordinal).min(u32::MAX.into()) as u32;
            match self.count_in_place(&mut passed, most)? {
                Poll::Frames(_) | Poll::Lapped(_) => {}
                Poll::Empty | Poll::Closed => break,
            }
        }
        self.lapped = self.ordinal.saturating_sub(ordinal);
        Ok(())
    }

    /// The block half a ring behind the newest: far enough from the writer not to be lapped at once.
    pub(super) fn safe_block(&self, opened: u64) -> u64 {
        opened.saturating_sub(1 + self.ring.geometry.data_blocks / 2)
    }

    /// Moves to the start of block `target`, or a later one if that is reclaimed meanwhile. False if
    /// the writer was too fast for every try; the cursor has not moved then.
    pub(super) fn relocate(&mut self, target: u64) -> Result<bool, RingError> {
        let mut block = target;
        for _ in 0..RELOCATE_TRIES {
            let entry = |word| &self.ring.words()[self.ring.geometry.entry_word(block, word)];
            let seq = load_acquire(entry(EntryWord::Seq)); // F
            if seq == seq_of(block) {
                let ordinal = entry(EntryWord::FirstOrdinal).load(Ordering::Relaxed);
                fence(Ordering::Acquire); // B: the ordinal belongs to this block
                if entry(EntryWord::Seq).load(Ordering::Relaxed) == seq {
                    if ordinal < self.ordinal {
                        return Err(self.corrupt("frame ordinals run backwards"));
                    }
                    (self.block, self.at, self.ordinal) = (block, 0, ordinal);
                    self.seen = NOWHERE;
                    return Ok(true);
                }
            }
            let opened = self.ring.writer_word(WriterWord::Opened);
            block = self.safe_block(opened).max(block);
        }
        Ok(false)
    }
}
