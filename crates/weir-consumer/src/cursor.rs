//! A consumer's position in one ring, which it reads to the end or to a given ordinal.

mod ahead;

pub use ahead::Skip;

use weir_ring::geometry::WriterWord;
use weir_ring::{Batch, Mapping, Poll, Reader, Ring, RingError, Start, Tally, Words};

use crate::source::Begin;

/// A reader of one ring, and the counts of the frames that the consumer has taken from it.
///
/// A consumer copies records and reports how many of them it took ([`take`](Cursor::take)), or counts records in place.
/// [`Poll::Closed`] is the end of the ring, or of the part that the consumer reads.
pub struct Cursor<M: Words = Mapping> {
    reader: Reader<M>,
    /// Ordinal of the next frame that the consumer has not taken.
    ordinal: u64,
    /// Ordinal of the first frame that the consumer does not read.
    until: u64,
    taken: u64,
    lapped: u64,
    untriggered: u64,
    /// Ordinal of the first frame that belongs to the consumer.
    from: u64,
    /// Ordinal of the first frame that the ring still had when the cursor was created.
    began: u64,
    /// Whether the writer is gone and has not closed the ring. Then the ring ends where no more frames are found.
    is_abandoned: bool,
    has_ended: bool,
    /// Whether blocks that the consumer has not read yet were removed with a device.
    is_gone_ahead: bool,
}

impl<M: Words> Cursor<M> {
    /// Creates a cursor that reads a ring from `begin` on. `number` is the number of the ring in its feed.
    ///
    /// # Errors
    /// [`RingError`] if the ring is inconsistent.
    pub fn new(ring: &Ring<M>, begin: &Begin, number: usize) -> Result<Cursor<M>, RingError> {
        let from = match begin {
            Begin::Oldest => None,
            Begin::First => Some(0),
            Begin::At(ordinals) => ordinals.get(number).copied(),
        };
        let start = match from {
            None | Some(0) => Start::Oldest,
            Some(ordinal) => Start::Ordinal(ordinal),
        };
        let reader = Reader::new(ring, start)?;
        let began = reader.ordinal();
        // An ordinal that the ring has not reached yet is ignored.
        let from = from.map_or(began, |from| from.min(began));
        Ok(Cursor {
            ordinal: began,
            reader,
            until: u64::MAX,
            taken: 0,
            untriggered: 0,
            lapped: began - from,
            from,
            began,
            is_abandoned: false,
            has_ended: false,
            is_gone_ahead: false,
        })
    }

    /// Does the same as [`Reader::keep_distance`].
    pub fn keep_distance(&mut self, bytes: u32) {
        self.reader.keep_distance(bytes);
    }

    /// Does the same as [`Reader::poll`]. All frames of the last batch must have been taken before.
    ///
    /// # Errors
    /// As [`Reader::poll`].
    pub fn poll(&mut self, batch: &mut Batch) -> Result<Poll, RingError> {
        if self.is_read() {
            return Ok(self.end());
        }
        let poll = self.look(|reader| reader.poll(batch))?;
        let Poll::Frames(frames) = poll else { return Ok(poll) };
        let wanted = (self.until - self.ordinal).min(frames.into()) as u32;
        batch.truncate(wanted);
        Ok(Poll::Frames(wanted))
    }

    /// Does the same as [`Reader::count_in_place`]. The counted frames are taken.
    ///
    /// # Errors
    /// As [`Reader::count_in_place`].
    pub fn count_in_place(
        &mut self,
        tally: &mut Tally,
        frames_max: u32,
    ) -> Result<Poll, RingError> {
        if self.is_read() {
            return Ok(self.end());
        }
        let most = (self.until - self.ordinal).min(frames_max.into()) as u32;
        let poll = self.look(|reader| reader.count_in_place(tally, most))?;
        if let Poll::Frames(frames) = poll {
            self.take(frames.into());
        }
        Ok(poll)
    }

    /// Records that the consumer took the next `frames` of the batch.
    #[inline]
    pub fn take(&mut self, frames: u64) {
        self.ordinal += frames;
        self.taken += frames;
    }

    fn look(
        &mut self,
        mut look: impl FnMut(&mut Reader<M>) -> Result<Poll, RingError>,
    ) -> Result<Poll, RingError> {
        let mut poll = look(&mut self.reader)?;
        // Poll a second time, because the first poll omits frames that are too near to the writer's position
        // (`keep_distance`).
        if poll == Poll::Empty && self.is_abandoned {
            poll = look(&mut self.reader)?;
        }
        Ok(match poll {
            Poll::Lapped(_) => {
                let missed = self.reader.ordinal().min(self.until) - self.ordinal;
                self.ordinal += missed;
                self.lapped += missed;
                Poll::Lapped(missed)
            }
            Poll::Empty if self.is_taken_away() => {
                self.lapped = self.lapped.saturating_add(self.until - self.ordinal);
                self.ordinal = self.until;
                self.end()
            }
            Poll::Empty if self.is_abandoned => self.end(),
            Poll::Closed => self.end(),
            other => other,
        })
    }

    /// Whether the ring was in a device that is unplugged: the ring has unread frames, but its memory now reads as that
    /// of a ring that never had a frame. These frames can no longer be read.
    fn is_taken_away(&self) -> bool {
        let ring = self.reader.ring();
        self.until != u64::MAX && !self.is_read() && ring.writer_word(WriterWord::Opened) == 0
    }

    /// Whether all frames before `until` were taken.
    #[must_use]
    #[inline]
    pub fn is_read(&self) -> bool {
        self.ordinal >= self.until
    }

    /// Ends the cursor now instead of at the next poll, if its feed has left and all its frames were taken.
    pub fn end_if_read(&mut self) {
        if self.is_read() {
            self.end();
        }
    }

    fn end(&mut self) -> Poll {
        self.has_ended = true;
        Poll::Closed
    }

    pub(crate) fn leave(&mut self, until: u64) {
        self.until = self.until.min(until);
        // The feed ends before the frame at which this cursor began. Of the frames that were overwritten by then, only
        // those before `until` count as lapped. If frames were read or lapped since, the feed cannot end before that
        // frame.
        if self.ordinal == self.began && self.until < self.began {
            self.lapped = self.until.saturating_sub(self.from);
        }
    }

    pub(crate) fn abandon(&mut self) {
        self.is_abandoned = true;
    }

    /// Whether the ring is read only to a known end: its feed has left, or its writer is gone.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.until != u64::MAX || self.is_abandoned
    }

    /// Whether the consumer has read everything.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the reader, whose position is after the copied frames.
    #[must_use]
    pub fn reader(&self) -> &Reader<M> {
        &self.reader
    }

    /// Returns the ordinal of the next frame that was not taken.
    #[must_use]
    #[inline]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Returns the ordinal of the first frame that the consumer does not read.
    #[must_use]
    #[inline]
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Returns the number of frames that the consumer took.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the number of frames that the writer overwrote before they were read, or that were removed with a
    /// device.
    #[must_use]
    pub fn lapped(&self) -> u64 {
        self.lapped
    }

    /// Returns the number of frames that were kept in the ring for a trigger, and that no trigger selected.
    #[must_use]
    pub fn untriggered(&self) -> u64 {
        self.untriggered
    }

    /// Returns the number of frames that were copied and not taken.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.reader.ordinal().min(self.until).saturating_sub(self.ordinal)
    }

    /// Returns the number of frames in the ring, or already copied, that were neither taken nor lapped.
    #[must_use]
    pub fn unread(&self) -> u64 {
        let written = self.reader.ring().frames_written().max(self.reader.ordinal());
        written.min(self.until).saturating_sub(self.ordinal)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::testing::{push, writer};

    #[test]
    fn what_was_taken_away_before_it_was_read_is_lapped() {
        for is_to_be_read in [true, false] {
            let mut writer = writer();
            (0..5).for_each(|at| push(&mut writer, at));
            let ring = writer.ring().clone();
            let mut cursor = Cursor::new(&ring, &Begin::Oldest, 0).unwrap();
            let (mut batch, mut tally) = (Batch::new(), Tally::default());
            assert_eq!(cursor.count_in_place(&mut tally, 2).unwrap(), Poll::Frames(2));
            // A mapping of an unplugged device reads like this.
            ring.memory().words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
            if is_to_be_read {
                cursor.leave(5);
            }
            // More frames may come until the end of the ring is known.
            let poll = cursor.poll(&mut batch).unwrap();
            let expected = if is_to_be_read { (Poll::Closed, 3) } else { (Poll::Empty, 0) };
            assert_eq!((poll, cursor.lapped()), expected);
            assert_eq!((cursor.taken(), cursor.has_ended()), (2, is_to_be_read));
        }
    }
}
