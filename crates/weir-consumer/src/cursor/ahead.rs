//! Reads ahead of the taken frames: for outputs that learn only later whether frames were kept, such as disk writes.
//!
//! Each block that was read is settled later, in the order of reading: as taken ([`Cursor::take`]), as lost
//! ([`Cursor::lose`]), or, if it was lapped before it could be read, as passed ([`Cursor::pass`]).

use weir_ring::geometry::WriterWord;
use weir_ring::{Batch, BlockLook, BlockRest, FrameHead, Poll, RestLook, RingError, Words};

use super::Cursor;

/// Result of [`Cursor::skip_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The rest of a block was skipped. It has this many frames.
    Passed(u64),
    /// The block was not skipped.
    Stays,
    /// The writer has not closed the block yet, or the consumer does not read the whole block.
    Part,
    /// There are no frames.
    Other(Poll),
}

impl<M: Words> Cursor<M> {
    /// Does the same as [`Reader::poll`](weir_ring::Reader::poll), even if earlier frames are not settled yet. Lapped
    /// frames are counted at once; they must be [passed](Cursor::pass) in their turn. [`Poll::Closed`] means that there
    /// is nothing more to read; call [`end_ahead`](Cursor::end_ahead) once all frames are settled.
    ///
    /// # Errors
    /// As [`Reader::poll`](weir_ring::Reader::poll).
    pub fn poll_ahead(&mut self, batch: &mut Batch) -> Result<Poll, RingError> {
        let before = self.reader.ordinal();
        if before >= self.until {
            return Ok(Poll::Closed);
        }
        let mut poll = self.reader.poll(batch)?;
        if poll == Poll::Empty && self.is_abandoned {
            poll = self.reader.poll(batch)?;
        }
        if let Poll::Frames(frames) = poll {
            let wanted = (self.until - before).min(frames.into()) as u32;
            batch.truncate(wanted);
            return Ok(Poll::Frames(wanted));
        }
        Ok(self.found_ahead(before, poll))
    }

    /// Does the same as [`Reader::look_at_block`](weir_ring::Reader::look_at_block), and moves past the block if it is
    /// whole. A block that the consumer does not read completely, or that has more than `frames_max` frames, is a
    /// [`BlockLook::Part`].
    ///
    /// # Errors
    /// As [`Reader::look_at_block`](weir_ring::Reader::look_at_block).
    pub fn next_block(
        &mut self,
        frames_max: u64,
        each: impl FnMut(&FrameHead<'_>),
    ) -> Result<BlockLook, RingError> {
        let before = self.reader.ordinal();
        if before >= self.until {
            return Ok(BlockLook::Other(Poll::Closed));
        }
        Ok(match self.reader.look_at_block(each)? {
            BlockLook::Whole(whole) if frames_max.min(self.until - before) < whole.frames => {
                BlockLook::Part
            }
            BlockLook::Whole(whole) => {
                self.reader.pass_block(&whole)?;
                BlockLook::Whole(whole)
            }
            BlockLook::Part => BlockLook::Part,
            // A poll tries a second time.
            BlockLook::Other(Poll::Empty) if self.is_abandoned => BlockLook::Part,
            BlockLook::Other(poll) => BlockLook::Other(self.found_ahead(before, poll)),
        })
    }

    /// Skips the rest of a closed block without reading it, if `may_go` returns true. The frames must be settled by
    /// [`let_pass`](Cursor::let_pass).
    ///
    /// # Errors
    /// As [`Reader::look_at_rest`](weir_ring::Reader::look_at_rest).
    pub fn skip_block(
        &mut self,
        may_go: impl FnOnce(&BlockRest) -> bool,
    ) -> Result<Skip, RingError> {
        let before = self.reader.ordinal();
        if before >= self.until {
            return Ok(Skip::Other(Poll::Closed));
        }
        Ok(match self.reader.look_at_rest()? {
            RestLook::Rest(rest) if self.until - before < rest.frames => Skip::Part,
            RestLook::Rest(rest) if may_go(&rest) => {
                self.reader.pass_rest(&rest)?;
                Skip::Passed(rest.frames)
            }
            RestLook::Rest(_) => Skip::Stays,
            RestLook::Part => Skip::Part,
            // A poll tries a second time.
            RestLook::Other(Poll::Empty) if self.is_abandoned => Skip::Part,
            RestLook::Other(poll) => Skip::Other(self.found_ahead(before, poll)),
        })
    }

    fn found_ahead(&mut self, before: u64, poll: Poll) -> Poll {
        match poll {
            Poll::Lapped(_) => {
                let missed = self.reader.ordinal().min(self.until) - before;
                self.lapped += missed;
                Poll::Lapped(missed)
            }
            Poll::Empty if self.is_taken_away_ahead() => {
                self.lapped = self.lapped.saturating_add(self.until - before);
                self.is_gone_ahead = true;
                Poll::Lapped(self.until - before)
            }
            Poll::Empty if self.is_abandoned || self.is_gone_ahead => Poll::Closed,
            other => other,
        }
    }

    fn is_taken_away_ahead(&self) -> bool {
        let is_wanted = self.until != u64::MAX && !self.is_gone_ahead;
        is_wanted && self.reader.ring().writer_word(WriterWord::Opened) == 0
    }

    /// Settles the next `frames`, which were read, as lost: a check found that the writer had overwritten them
    /// meanwhile.
    pub fn lose(&mut self, frames: u64) {
        self.ordinal += frames;
        self.lapped += frames;
    }

    /// Settles the next `frames`, which were lapped before they could be read. They are counted already.
    pub fn pass(&mut self, frames: u64) {
        self.ordinal += frames;
    }

    /// Settles the next `frames` as untriggered: they were kept in the ring for a trigger, and no trigger came.
    pub fn let_pass(&mut self, frames: u64) {
        self.ordinal += frames;
        self.untriggered += frames;
    }

    /// Settles the next `frames`, which were lapped while they were kept in the ring for a trigger that had not come.
    /// They are counted as untriggered instead of lapped.
    pub fn pass_untriggered(&mut self, frames: u64) {
        self.lapped = self.lapped.saturating_sub(frames);
        self.let_pass(frames);
    }

    /// Settles all remaining frames as untriggered: they were kept in the ring for a trigger, and no trigger came.
    pub fn let_rest_pass(&mut self) {
        self.let_pass(self.unread());
    }

    /// Ends the cursor. Called when everything was read and settled.
    pub fn end_ahead(&mut self) {
        self.has_ended = true;
    }
}

#[cfg(test)]
mod tests {
    use weir_frame::record::Meta;
    use weir_ring::{Mapping, Ring, Writer};

    use super::*;
    use crate::source::Begin;
    use crate::testing::{push, writer};

    fn cursor(ring: &Ring<Mapping>) -> Cursor {
        Cursor::new(ring, &Begin::Oldest, 0).unwrap()
    }

    /// A block of `frames` frames.
    fn push_block(writer: &mut Writer<Mapping>, frames: u64) {
        (0..frames).for_each(|ts_ns| {
            writer.push(&Meta { ts_ns, wire_len: 60, ..Meta::default() }, &[0; 60]);
        });
        writer.close_block();
    }

    #[test]
    fn what_is_read_ahead_is_settled_in_order() {
        let mut writer = writer();
        push_block(&mut writer, 10);
        let mut cursor = cursor(writer.ring());
        let mut batch = Batch::new();
        assert_eq!(cursor.next_block(9, |_| ()).unwrap(), BlockLook::Part);
        let BlockLook::Whole(whole) = cursor.next_block(u64::MAX, |_| ()).unwrap() else {
            panic!()
        };
        push_block(&mut writer, 3);
        assert!(matches!(cursor.next_block(u64::MAX, |_| ()).unwrap(), BlockLook::Whole(_)));
        for _ in 0..5 {
            push_block(&mut writer, 2);
        }
        // The first two blocks are gone, and with them the frames that were to be read next.
        assert!(!cursor.reader().holds(whole.block));
        let Poll::Lapped(missed) = cursor.poll_ahead(&mut batch).unwrap() else { panic!() };
        assert_eq!((cursor.ordinal(), cursor.lapped(), cursor.taken()), (0, missed, 0));
        cursor.lose(10);
        cursor.take(3);
        cursor.pass(missed);
        assert_eq!((cursor.ordinal(), cursor.taken()), (13 + missed, 3));
        assert_eq!(cursor.lapped(), 10 + missed);
        assert_eq!(cursor.unread(), 23 - 13 - missed);
    }

    #[test]
    fn a_block_that_is_not_to_be_read_whole_is_copied() {
        let mut writer = writer();
        push_block(&mut writer, 10);
        let mut cursor = cursor(writer.ring());
        let mut batch = Batch::new();
        cursor.leave(4);
        assert_eq!(cursor.next_block(u64::MAX, |_| ()).unwrap(), BlockLook::Part);
        assert_eq!(cursor.poll_ahead(&mut batch).unwrap(), Poll::Frames(4));
        assert_eq!(batch.len(), 4);
        assert_eq!(cursor.poll_ahead(&mut batch).unwrap(), Poll::Closed);
        assert_eq!(cursor.next_block(u64::MAX, |_| ()).unwrap(), BlockLook::Other(Poll::Closed));
        assert!(!cursor.has_ended());
        cursor.take(4);
        cursor.end_ahead();
        assert!(cursor.has_ended() && cursor.unread() == 0);
    }

    #[test]
    fn what_was_taken_away_with_a_device_is_lapped_once() {
        use std::sync::atomic::Ordering;
        let mut writer = writer();
        (0..5).for_each(|at| push(&mut writer, at));
        let ring = writer.ring().clone();
        let mut cursor = cursor(&ring);
        let mut batch = Batch::new();
        ring.memory().words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        cursor.leave(5);
        assert_eq!(cursor.poll_ahead(&mut batch).unwrap(), Poll::Lapped(5));
        assert_eq!(cursor.poll_ahead(&mut batch).unwrap(), Poll::Closed);
        assert_eq!(cursor.lapped(), 5);
    }

    #[test]
    fn blocks_that_are_kept_are_passed_unread_or_read() {
        let mut writer = writer();
        push_block(&mut writer, 10);
        push_block(&mut writer, 4);
        let mut cursor = cursor(writer.ring());
        assert_eq!(cursor.skip_block(|_| false).unwrap(), Skip::Stays);
        assert_eq!(cursor.skip_block(|rest| rest.last_ns == 9).unwrap(), Skip::Passed(10));
        cursor.let_pass(10);
        assert!(matches!(cursor.next_block(u64::MAX, |_| ()).unwrap(), BlockLook::Whole(_)));
        cursor.take(4);
        push(&mut writer, 20);
        assert_eq!(cursor.skip_block(|_| true).unwrap(), Skip::Part);
        cursor.leave(14);
        assert_eq!(cursor.skip_block(|_| true).unwrap(), Skip::Other(Poll::Closed));
        assert_eq!((cursor.untriggered(), cursor.taken(), cursor.lapped()), (10, 4, 0));
    }

    #[test]
    fn what_is_lapped_before_anything_happened_is_not_lost() {
        let mut writer = writer();
        let mut cursor = cursor(writer.ring());
        for _ in 0..6 {
            push_block(&mut writer, 5);
        }
        let Skip::Other(Poll::Lapped(missed)) = cursor.skip_block(|_| true).unwrap() else {
            panic!()
        };
        assert!(missed > 0);
        cursor.pass_untriggered(missed);
        assert_eq!((cursor.lapped(), cursor.untriggered(), cursor.ordinal()), (0, missed, missed));
        cursor.let_rest_pass();
        assert_eq!((cursor.untriggered(), cursor.unread()), (30, 0));
    }
}
