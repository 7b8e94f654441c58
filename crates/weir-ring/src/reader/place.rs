//! Finds the position at which a new reader begins, or at which a reader that was overtaken continues.

use super::{NOWHERE, Poll, Reader, Tally};
use crate::Words;
use crate::error::RingError;
use crate::geometry::{EntryWord, WriterWord, seq_of};
use crate::sync::{Ordering, fence, load_acquire};

/// How often a reader looks for a new position if the writer keeps overtaking it. Then it returns `Empty`, so that the
/// caller regains control.
const RELOCATE_TRIES: u32 = if cfg!(loom) { 2 } else { 64 };

impl<M: Words> Reader<M> {
    /// Moves the reader to half a ring behind the writer. Returns [`Poll::Lapped`] with the number of skipped frames,
    /// or [`Poll::Empty`] if there are none or if no position was found.
    #[cold]
    pub(super) fn lapped_now(&mut self) -> Result<Poll, RingError> {
        let before = self.ordinal;
        // The claim of a block may be visible before the number of opened blocks is. Then `seq` is newer.
        let claimed = load_acquire(self.entry(EntryWord::Seq)).saturating_sub(1) / 2;
        let opened = self.ring.writer_word(WriterWord::Opened).max(claimed);
        let target = self.safe_block(opened).max(self.block.saturating_add(1));
        if !self.relocate(target)? {
            return Ok(Poll::Empty);
        }
        // If the reader had read all frames of the overtaken block, nothing is lost.
        let missed = self.ordinal - before;
        if missed == 0 {
            return Ok(Poll::Empty);
        }
        self.lapped += missed;
        Ok(Poll::Lapped(missed))
    }

    /// Returns the opened block that has the frame of this ordinal. If that block is overwritten, returns the block
    /// half a ring behind the newest.
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

    /// Moves past the frames before this ordinal, which are all in the reader's block. Frames from this ordinal on that
    /// were overwritten meanwhile count as lapped.
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

    /// Returns the block half a ring behind the newest block: so far from the writer that the reader is not lapped at
    /// once.
    pub(super) fn safe_block(&self, opened: u64) -> u64 {
        opened.saturating_sub(1 + self.ring.geometry.data_blocks / 2)
    }

    /// Moves to the start of block `target`, or of a later block if `target` is reclaimed meanwhile. Returns false if
    /// the writer was too fast in every try; then the cursor has not moved.
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
