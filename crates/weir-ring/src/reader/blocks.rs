//! Reads whole blocks in place: for callers that pass ring memory on without a copy, for example to a disk.
//!
//! Nothing is borrowed: the caller gets the offset of the block, and copies of the first bytes of each frame. The
//! writer may overtake the block at any time, so results are valid only if [`Reader::holds`] returns true afterwards.

use weir_frame::record::HEADER_BYTES;

use super::count::Head;
use super::{Look, NOWHERE, Poll, Reader, STEPS_MAX};
use crate::Words;
use crate::batch::WalkEnd;
use crate::copy;
use crate::error::RingError;
use crate::geometry::{EntryWord, PADDING_TYPE, WriterWord, seq_of};
use crate::sync::{AtomicU64, Ordering, fence, load_acquire};

/// Most bytes of a frame that a walk over a block copies.
pub const HEAD_BYTES: usize = 128;
/// Words that are needed to hold this many bytes, wherever in a word they begin.
const HEAD_WORDS: usize = HEAD_BYTES / 8 + 1;
/// How far ahead of the walk a block is prefetched, line by line. The position of the next record is known only after
/// the length of the current one has been read, so without prefetching each frame costs two accesses to memory. At 1518
/// bytes a frame, a recorder took 0.24 CPU s a GB when it guessed the positions of the next records, and takes 0.13;
/// for blocks that are written in place, 0.10 and 0.06.
const FETCH_AHEAD_BYTES: u32 = 8 << 10;
const LINE_BYTES: u32 = 64;

/// A frame of a block: the fields of its record, and its first bytes.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead<'a> {
    /// Number of the frame's interface in the ring.
    pub interface_id: u32,
    /// Timestamp of the frame, nanoseconds since the Unix epoch.
    pub ts_ns: u64,
    /// Bytes kept of the frame.
    pub caplen: u32,
    /// Bytes of the frame on the wire.
    pub wire_len: u32,
    /// The first of the kept bytes, at most [`HEAD_BYTES`].
    pub bytes: &'a [u8],
}

/// Description of a closed block, as it was during the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Number of the block since the ring began.
    pub block: u64,
    /// Offset of the block in the ring's memory.
    pub at: usize,
    /// Length of the block in bytes. The block has only complete pcapng blocks.
    pub bytes: usize,
    /// Bytes of the block's records; padding follows them.
    pub used: usize,
    /// Number of frames in the block.
    pub frames: u64,
    /// Sum of the frames' bytes on the wire.
    pub wire_bytes: u64,
    /// Ordinal of the first frame.
    pub first_ordinal: u64,
    /// Highest interface number in the block's frames.
    pub highest_interface_id: u32,
}

/// Result of [`Reader::look_at_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockLook {
    /// A whole block, which [`Reader::pass_block`] moves past.
    Whole(Whole),
    /// Frames, but not a whole block: the reader is within a block, or the block is still being written.
    /// [`Reader::poll`] copies the frames.
    Part,
    /// No frames.
    Other(Poll),
}

/// The rest of a closed block, as the index describes it. The block itself was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRest {
    /// The block's number since the ring began.
    pub block: u64,
    /// Number of the block's frames that the reader has not read yet.
    pub frames: u64,
    /// Times of the first and the last frame of the block, nanoseconds since the Unix epoch.
    pub first_ns: u64,
    /// As `first_ns`, for the last frame.
    pub last_ns: u64,
}

/// Result of [`Reader::look_at_rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestLook {
    /// The rest of a block, perhaps without a frame, which [`Reader::pass_rest`] moves past.
    Rest(BlockRest),
    /// The block is still being written, and has frames that were not read yet.
    Part,
    /// No frames.
    Other(Poll),
}

impl<M: Words> Reader<M> {
    /// Describes the rest of the reader's block, if the block is closed, from the block's index entry: for readers that
    /// skip most of a ring.
    ///
    /// # Errors
    /// As [`poll`](Reader::poll).
    pub fn look_at_rest(&mut self) -> Result<RestLook, RingError> {
        let committed = match self.look()? {
            Look::Committed { bytes, .. } => bytes,
            Look::Other(poll) => return Ok(RestLook::Other(poll)),
        };
        if committed < self.ring.geometry.block_bytes {
            return Ok(RestLook::Part);
        }
        let load = |word| self.entry(word).load(Ordering::Relaxed);
        let (first, frames) = (load(EntryWord::FirstOrdinal), load(EntryWord::Frames));
        let (first_ns, last_ns) = (load(EntryWord::FirstNs), load(EntryWord::LastNs));
        if !self.confirm() {
            return Ok(RestLook::Other(self.lapped_now()?));
        }
        let left = first.checked_add(frames).and_then(|end| end.checked_sub(self.ordinal));
        let Some(frames) = left else {
            return Err(self.corrupt("a closed block of other frames than were read of it"));
        };
        Ok(RestLook::Rest(BlockRest { block: self.block, frames, first_ns, last_ns }))
    }

    /// Returns the time of the first frame of the reader's block; `None` if the ring no longer has this block.
    #[must_use]
    pub fn block_ns(&self) -> Option<u64> {
        self.time_in_index(self.block, EntryWord::FirstNs)
    }

    /// Returns the time of the last frame of the ring; `None` if the ring has no frame, or if the writer overwrites the
    /// time before it can be confirmed.
    #[must_use]
    pub fn newest_ns(&self) -> Option<u64> {
        let newest = self.ring.writer_word(WriterWord::Opened).checked_sub(1)?;
        self.time_in_index(newest, EntryWord::LastNs)
    }

    fn time_in_index(&self, block: u64, word: EntryWord) -> Option<u64> {
        let load = |word| &self.ring.words()[self.ring.geometry.entry_word(block, word)];
        if load_acquire(load(EntryWord::Seq)) != seq_of(block) {
            return None;
        }
        let time_ns = load(word).load(Ordering::Relaxed);
        self.holds(block).then_some(time_ns)
    }

    /// Moves past the rest that [`look_at_rest`](Reader::look_at_rest) has just returned.
    ///
    /// # Errors
    /// As [`pass_block`](Reader::pass_block).
    pub fn pass_rest(&mut self, rest: &BlockRest) -> Result<(), RingError> {
        if rest.block != self.block {
            return Err(self.corrupt("another block than the one that was looked at"));
        }
        self.advance(0, rest.frames)?;
        self.block = self.block.wrapping_add(1);
        self.seen = NOWHERE;
        Ok(())
    }

    /// Walks over the next block, if it is closed and the reader is at its beginning, and passes its frames to `each`
    /// in order. They are valid only if this function returns [`BlockLook::Whole`].
    ///
    /// # Errors
    /// As [`poll`](Reader::poll).
    pub fn look_at_block(
        &mut self,
        mut each: impl FnMut(&FrameHead<'_>),
    ) -> Result<BlockLook, RingError> {
        let block_bytes = self.ring.geometry.block_bytes;
        let mut steps = 0..STEPS_MAX;
        loop {
            let committed = match self.look()? {
                Look::Committed { bytes, .. } => bytes,
                Look::Other(poll) => return Ok(BlockLook::Other(poll)),
            };
            if committed < block_bytes || steps.next().is_none() {
                return Ok(BlockLook::Part);
            }
            if self.at == 0 {
                break;
            }
            // The reader is within a closed block. If all of the block's frames were read, go on with the next block.
            let rest = match self.at {
                at if at == block_bytes => WalkEnd::Everything,
                at => match Head::check(self.block_words(), at, block_bytes) {
                    Err(end @ WalkEnd::OtherBlock { block_type: PADDING_TYPE, .. }) => end,
                    _ => return Ok(BlockLook::Part),
                },
            };
            if !self.confirm() {
                return Ok(BlockLook::Other(self.lapped_now()?));
            }
            self.pass_padding(rest, committed)?;
        }
        let frames = self.entry(EntryWord::Frames).load(Ordering::Relaxed);
        let walked = walk(self.block_words(), block_bytes, &mut each);
        if !self.confirm() {
            return Ok(BlockLook::Other(self.lapped_now()?));
        }
        let whole = Whole {
            block: self.block,
            at: self.ring.geometry.block_word(self.block) * 8,
            bytes: block_bytes as usize,
            first_ordinal: self.ordinal,
            ..walked.whole
        };
        if whole.frames == 0 {
            // `poll` moves past this block, and checks that only padding is in it.
            return Ok(BlockLook::Part);
        }
        let ends_well = match walked.end {
            WalkEnd::Everything => true,
            WalkEnd::OtherBlock { block_type: PADDING_TYPE, bytes } => {
                (whole.used as u32).checked_add(bytes) == Some(block_bytes)
            }
            _ => false,
        };
        if !ends_well || whole.frames != frames {
            return Err(self.corrupt("a closed block that is not whole"));
        }
        self.check_interface(whole.highest_interface_id)?;
        Ok(BlockLook::Whole(whole))
    }

    /// Moves past the block that [`look_at_block`](Reader::look_at_block) has just returned.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the ordinal would overflow.
    pub fn pass_block(&mut self, whole: &Whole) -> Result<(), RingError> {
        if whole.block != self.block || self.at != 0 {
            return Err(self.corrupt("another block than the one that was looked at"));
        }
        self.advance(0, whole.frames)?;
        self.block = self.block.wrapping_add(1);
        self.seen = NOWHERE;
        Ok(())
    }

    /// Whether the ring still has this block. If so, everything that was read from the block before this call is valid.
    #[must_use]
    pub fn holds(&self, block: u64) -> bool {
        fence(Ordering::Acquire); // B, pairs with A in Writer, as in `confirm`
        let entry = self.ring.geometry.entry_word(block, EntryWord::Seq);
        self.ring.words()[entry].load(Ordering::Relaxed) == seq_of(block)
    }
}

struct Walked {
    whole: Whole,
    end: WalkEnd,
}

/// Walks over the records of a closed block. Every length is loaded once and checked against the block's end.
fn walk(words: &[AtomicU64], block_bytes: u32, each: &mut impl FnMut(&FrameHead<'_>)) -> Walked {
    let mut whole = Whole {
        block: 0,
        at: 0,
        bytes: 0,
        used: 0,
        frames: 0,
        wire_bytes: 0,
        first_ordinal: 0,
        highest_interface_id: 0,
    };
    let (mut at, mut fetched) = (0, 0);
    let end = loop {
        if at == block_bytes {
            break WalkEnd::Everything;
        }
        let head = match Head::check(words, at, block_bytes) {
            Ok(head) => head,
            Err(end) => break end,
        };
        let fetch_to = (at + head.bytes).saturating_add(FETCH_AHEAD_BYTES).min(block_bytes);
        while fetched < fetch_to {
            copy::prefetch(words, fetched);
            fetched += LINE_BYTES;
        }
        let mut bytes = [0; HEAD_WORDS * 8];
        let frame_at = at + HEADER_BYTES;
        let (begin, kept) = (frame_at as usize % 8, (head.caplen as usize).min(HEAD_BYTES));
        load_bytes(
            &mut bytes[..(begin + kept).next_multiple_of(8)],
            &words[frame_at as usize / 8..],
        );
        each(&FrameHead {
            interface_id: head.interface_id,
            ts_ns: head.ts_ns,
            caplen: head.caplen,
            wire_len: head.wire_len,
            bytes: &bytes[begin..begin + kept],
        });
        whole.frames += 1;
        whole.wire_bytes += u64::from(head.wire_len);
        whole.highest_interface_id = whole.highest_interface_id.max(head.interface_id);
        at += head.bytes;
    };
    whole.used = at as usize;
    Walked { whole, end }
}

fn load_bytes(to: &mut [u8], from: &[AtomicU64]) {
    let (to, _) = to.as_chunks_mut::<8>();
    for (own, shared) in to.iter_mut().zip(from) {
        *own = shared.load(Ordering::Relaxed).to_le_bytes();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::{heap_ring, meta};
    use crate::{Batch, Ring, Start, Writer};

    type Memory = Vec<AtomicU64>;

    fn whole(reader: &mut Reader<Memory>) -> (Whole, Vec<(u64, Vec<u8>)>) {
        let mut heads = Vec::new();
        match reader.look_at_block(|head| heads.push((head.ts_ns, head.bytes.to_vec()))).unwrap() {
            BlockLook::Whole(whole) => (whole, heads),
            other => panic!("{other:?}"),
        }
    }

    /// The bytes of a ring from `at` on.
    fn bytes(ring: &Ring<Memory>, at: usize, count: usize) -> Vec<u8> {
        let words = ring.memory()[at / 8..(at + count) / 8].iter();
        words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    #[test]
    fn a_closed_block_is_found_where_it_lies_with_the_heads_of_its_frames() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let frames: Vec<Vec<u8>> = (0..400).map(|n| vec![n as u8; 7 * n]).collect();
        for (ordinal, frame) in frames.iter().enumerate() {
            writer.push(&meta(ordinal as u64), frame);
        }
        writer.publish();
        assert_eq!(reader.look_at_block(|_| ()).unwrap(), BlockLook::Part);
        writer.close_block();
        let (found, heads) = whole(&mut reader);
        assert_eq!((found.block, found.frames, found.first_ordinal), (0, 400, 0));
        let expected = frames.iter().zip(0..).map(|(frame, ordinal)| {
            (meta(ordinal).ts_ns, frame[..frame.len().min(HEAD_BYTES)].to_vec())
        });
        assert_eq!(heads, expected.collect::<Vec<_>>());
        // The bytes are those that a poll copies.
        let (mut batch, mut copied) = (Batch::new(), Vec::new());
        let mut other = reader.clone();
        while let Poll::Frames(_) = other.poll(&mut batch).unwrap() {
            copied.extend_from_slice(batch.block_bytes());
        }
        assert_eq!(bytes(&ring, found.at, found.bytes)[..found.used], copied);
        reader.pass_block(&found).unwrap();
        assert_eq!((reader.ordinal(), reader.delivered()), (400, 400));
        assert_eq!(reader.look_at_block(|_| ()).unwrap(), BlockLook::Other(Poll::Empty));
    }

    #[test]
    fn the_rest_of_a_closed_block_is_passed_unread() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        for frame in 0..400 {
            writer.push(&meta(frame), &[1; 60]);
        }
        writer.publish();
        assert_eq!(reader.look_at_rest().unwrap(), RestLook::Part);
        let Poll::Frames(read) = reader.poll(&mut batch).unwrap() else { panic!() };
        assert!(read < 400);
        writer.close_block();
        let RestLook::Rest(rest) = reader.look_at_rest().unwrap() else { panic!() };
        let times = (meta(0).ts_ns, meta(399).ts_ns);
        assert_eq!(
            (rest.first_ns, rest.last_ns, rest.frames),
            (times.0, times.1, 400 - u64::from(read))
        );
        assert_eq!((reader.block_ns(), reader.newest_ns()), (Some(times.0), Some(times.1)));
        reader.pass_rest(&rest).unwrap();
        assert_eq!((reader.ordinal(), reader.block_ns()), (400, None));
        assert_eq!(reader.look_at_rest().unwrap(), RestLook::Other(Poll::Empty));
        assert!(reader.pass_rest(&rest).is_err());
        writer.push(&meta(400), &[1; 60]);
        writer.publish();
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
        // The reader has read more frames than the index has.
        writer.close_block();
        ring.words()[ring.geometry().entry_word(1, EntryWord::Frames)].store(0, Ordering::Relaxed);
        assert!(reader.look_at_rest().is_err());
    }

    #[test]
    fn within_a_block_and_before_an_open_one_there_are_parts() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        writer.push(&meta(0), &[1; 60]);
        writer.publish();
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
        writer.push(&meta(1), &[1; 60]);
        writer.close_block();
        assert_eq!(reader.look_at_block(|_| ()).unwrap(), BlockLook::Part);
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
        assert_eq!(reader.look_at_block(|_| ()).unwrap(), BlockLook::Other(Poll::Empty));
        writer.push(&meta(2), &[1; 60]);
        writer.close_block();
        // The rest of the block before was only padding.
        let (found, _) = whole(&mut reader);
        assert_eq!((found.block, found.first_ordinal), (1, 2));
    }

    #[test]
    fn a_block_that_the_writer_took_again_is_held_no_more() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        writer.push(&meta(0), &[1; 60]);
        writer.close_block();
        let (found, _) = whole(&mut reader);
        reader.pass_block(&found).unwrap();
        for ordinal in 1..4 {
            assert!(reader.holds(found.block));
            writer.push(&meta(ordinal), &[1; 60]);
            writer.close_block();
        }
        assert!(reader.holds(found.block));
        writer.push(&meta(4), &[1; 60]);
        assert!(!reader.holds(found.block));
    }

    #[test]
    fn a_closed_block_that_contradicts_itself_is_corrupt() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        writer.push(&meta(0), &[1; 60]);
        writer.push(&meta(1), &[1; 60]);
        writer.close_block();
        let frames = ring.geometry().entry_word(0, EntryWord::Frames);
        ring.memory()[frames].store(3, Ordering::Relaxed);
        assert!(matches!(reader.look_at_block(|_| ()), Err(RingError::Corrupt { .. })));
        ring.memory()[frames].store(2, Ordering::Relaxed);
        let (found, _) = whole(&mut reader);
        // The second record is overwritten by something that is not a record.
        ring.memory()[found.at / 8 + 14].store(u64::MAX, Ordering::Relaxed);
        assert!(matches!(reader.look_at_block(|_| ()), Err(RingError::Corrupt { .. })));
    }
}
