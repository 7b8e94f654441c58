//! The reading half of the algorithm. There may be any number of readers, each with its own cursor; the writer does not
//! know of them.
//!
//! A reader copies bytes, confirms that their block was not reclaimed meanwhile, and only then parses its copy: the
//! reader half of a seqlock (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012). If
//! the reader was overtaken, it computes the exact number of frames that it missed from the ordinal in the index.

pub mod blocks;
mod count;
mod place;

use crate::batch::{Batch, WalkEnd};
use crate::error::RingError;
use crate::geometry::{EntryWord, PADDING_TYPE, WriterWord, seq_of};
use crate::sync::{AtomicU64, Ordering, fence, load_acquire};
use crate::{Ring, Words};
pub use blocks::{BlockLook, BlockRest, FrameHead, RestLook, Whole};
pub use count::Tally;
use weir_frame::record::HEADER_BYTES;

/// Position at which a new reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the very first frame while its block has not been overwritten, else half a ring behind the writer: older
    /// frames are about to be overwritten.
    Oldest,
    /// At the first frame of the block that is being written.
    Newest,
    /// At the frame with this ordinal. If that frame was overwritten, as far behind the writer as
    /// [`Oldest`](Start::Oldest); the frames in between count as lapped. If the frame is not written yet, behind the
    /// last written frame.
    Ordinal(u64),
}

/// Result of [`Reader::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Frames were delivered.
    Frames(u32),
    /// There are no new frames yet.
    Empty,
    /// The writer overtook this reader, which missed exactly this many frames (never 0). The reader is now half a ring
    /// behind the writer. Loss is a result, not an error.
    Lapped(u64),
    /// The writer has closed the ring and everything was read.
    Closed,
}

/// A reader of a ring: a cursor and the counts of its frames.
///
/// There are two ways to read: [`poll`](Reader::poll) copies records into a [`Batch`];
/// [`count_in_place`](Reader::count_in_place) counts records without a copy. Neither lends bytes that the writer may be
/// changing.
pub struct Reader<M: Words> {
    ring: Ring<M>,
    block: u64,
    at: u32,
    /// Ordinal of the next frame.
    ordinal: u64,
    joined_at: u64,
    lapped: u64,
    ended: bool,
    /// Bytes to stay behind the writer while it writes.
    distance: u32,
    /// Position of the writer when the reader last found only frames within this distance.
    seen: u32,
    /// Number of interfaces that the ring described when the reader last loaded it.
    interfaces: u32,
}

impl<M: Words> Clone for Reader<M> {
    fn clone(&self) -> Self {
        Reader { ring: self.ring.clone(), ..*self }
    }
}

/// Not a position in a block.
const NOWHERE: u32 = u32::MAX;
/// Most blocks without frames that one call passes. An honest writer makes such a block only when it could not read the
/// bytes of a frame; a hostile writer could make them as fast as the reader passes them.
const STEPS_MAX: u32 = 64;

impl<M: Words> Reader<M> {
    /// Creates a reader of `ring`.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the contents of the ring contradict each other.
    pub fn new(ring: &Ring<M>, start: Start) -> Result<Self, RingError> {
        let mut reader = Reader {
            ring: ring.clone(),
            block: 0,
            at: 0,
            ordinal: 0,
            joined_at: 0,
            lapped: 0,
            ended: false,
            distance: 0,
            seen: NOWHERE,
            interfaces: ring.interfaces(),
        };
        let opened = reader.ring.writer_word(WriterWord::Opened);
        let target = match start {
            _ if opened == 0 => None,
            Start::Oldest if opened <= reader.ring.geometry.data_blocks => None,
            Start::Oldest => Some(reader.safe_block(opened)),
            Start::Newest => Some(opened - 1),
            Start::Ordinal(ordinal) => Some(reader.block_of(ordinal, opened)),
        };
        // If every try fails although blocks were opened, the index and the number of opened blocks disagree.
        if let Some(block) = target
            && !reader.relocate(block)?
        {
            return Err(reader.corrupt("the index holds none of the newest blocks"));
        }
        if let Start::Ordinal(ordinal) = start {
            reader.pass_to(ordinal)?;
        }
        reader.joined_at = reader.ordinal - reader.lapped;
        Ok(reader)
    }

    /// Returns the reader's ring.
    #[must_use]
    pub fn ring(&self) -> &Ring<M> {
        &self.ring
    }

    /// Returns the ordinal of the next frame: the number of frames that the ring had before it.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Returns the ordinal of the first frame that counts for this reader, as delivered or as lapped.
    #[must_use]
    pub fn joined_at(&self) -> u64 {
        self.joined_at
    }

    /// Returns the number of frames that this reader missed so far.
    #[must_use]
    pub fn lapped(&self) -> u64 {
        self.lapped
    }

    /// Returns the number of frames that were delivered so far: `captured = delivered + lapped`, counted from
    /// `joined_at`.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.ordinal - self.joined_at - self.lapped
    }

    /// Returns which part of the ring has not been read yet: from 0 up to 1, where the writer overtakes this reader.
    /// Counts only whole blocks: those that were opened after the reader's current block.
    #[must_use]
    pub fn fill(&self) -> f64 {
        let newest = self.ring.writer_word(WriterWord::Opened).saturating_sub(1);
        let before = newest.saturating_sub(self.block);
        (before as f64 / self.ring.geometry.data_blocks as f64).min(1.0)
    }

    /// Makes the reader stay `bytes` behind the writer while it writes: for readers that poll all the time.
    ///
    /// A processor prefetches memory beyond the bytes that are read. Directly behind the writer, this takes cache lines
    /// to which the writer is about to store. It costs the writer some 1.6 us each time that a reader catches up with
    /// it; from [`DISTANCE_BYTES`](crate::idle::DISTANCE_BYTES) behind, no cost can be measured. Nearer frames are
    /// delivered once the writer has not moved between two polls that found no other frames, so wait between polls
    /// ([`Spin`](crate::idle::Spin)). 0, the default, delivers all frames at once, which is right for readers that
    /// sleep ([`wake`](crate::wake)).
    pub fn keep_distance(&mut self, bytes: u32) {
        self.distance = bytes;
    }

    /// Whether the reader has returned [`Poll::Closed`]: there will be no more frames.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Copies the next records into `batch` and moves past them.
    ///
    /// A batch never spans two blocks. It has about 16 KiB, or as much as it [was set to](Batch::set_chunk_bytes), or
    /// one longer record. `Poll::Frames(n)` counts frames. The batch is empty unless frames were delivered.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the contents of the memory contradict each other while the block is not being
    /// reclaimed, or if a record names an interface that the ring does not describe ([`Ring::interfaces`]). The reader
    /// does not move, and returns the same error when called again.
    pub fn poll(&mut self, batch: &mut Batch) -> Result<Poll, RingError> {
        batch.clear();
        for _ in 0..STEPS_MAX {
            let (committed, until) = match self.look()? {
                Look::Committed { bytes, until } => (bytes, until),
                Look::Other(poll) => return Ok(poll),
            };
            let ready = committed - self.at;
            // At least a record's header, which has the length of the record.
            let mut bytes = (until - self.at).max(HEADER_BYTES).min(batch.chunk_bytes()).min(ready);
            let Some((mut used, mut end)) = self.copy(batch, bytes) else {
                return self.lapped_now();
            };
            // A single record is longer than these bytes: copy again, the whole record.
            if let WalkEnd::CutOff { need } = end
                && used == 0
                && bytes < ready
            {
                if need > u64::from(self.ring.geometry.record_bytes_max()) {
                    return Err(self.corrupt("record longer than any class"));
                }
                bytes = ready.min(need as u32);
                let Some(again) = self.copy(batch, bytes) else { return self.lapped_now() };
                (used, end) = again;
            }
            if used > 0 {
                batch.fetch(self.block_words(), self.at + used, until);
                if let Err(error) = self.check_interface(batch.highest_interface_id()) {
                    batch.clear();
                    return Err(error);
                }
                self.advance(self.at + used, batch.len() as u64)?;
                return Ok(Poll::Frames(batch.len() as u32));
            }
            self.pass_padding(end, committed)?;
        }
        Ok(Poll::Empty)
    }

    /// Copies `bytes` from the cursor on and walks over the copy. Returns `None` if the block was reclaimed.
    fn copy(&self, batch: &mut Batch, bytes: u32) -> Option<(u32, WalkEnd)> {
        batch.copy(self.block_words(), self.at, bytes);
        if self.confirm() {
            return Some(batch.keep_whole());
        }
        batch.clear();
        None
    }

    /// Checks that the ring describes the interface of a confirmed record. Interfaces may have joined since the number
    /// was last loaded: each is counted before the first record that names it.
    #[inline]
    fn check_interface(&mut self, id: u32) -> Result<(), RingError> {
        if id >= self.interfaces {
            self.interfaces = self.ring.interfaces();
            if id >= self.interfaces {
                return Err(
                    self.corrupt("a record of an interface that the ring does not describe")
                );
            }
        }
        Ok(())
    }

    /// Moves to the next block if the walk ended at the padding of this block and found no record before it.
    fn pass_padding(&mut self, end: WalkEnd, committed: u32) -> Result<(), RingError> {
        let block_bytes = self.ring.geometry.block_bytes;
        let at_end = committed == block_bytes
            && match end {
                WalkEnd::Everything => self.at == block_bytes,
                WalkEnd::OtherBlock { block_type: PADDING_TYPE, bytes } => {
                    self.at.checked_add(bytes) == Some(block_bytes)
                }
                _ => false,
            };
        if !at_end {
            return Err(self.corrupt("no whole record where one was committed"));
        }
        self.block = self.block.wrapping_add(1);
        self.at = 0;
        self.seen = NOWHERE;
        Ok(())
    }

    /// Loads how many bytes of the current block are committed.
    #[inline]
    fn look(&mut self) -> Result<Look, RingError> {
        // F, pairs with E in Writer: an entry with the expected `seq` is complete.
        let seq = load_acquire(self.entry(EntryWord::Seq));
        if seq != seq_of(self.block) {
            return self.look_elsewhere(seq).map(Look::Other);
        }
        // D, pairs with C in Writer::publish: the records below `committed` are complete.
        let committed = load_acquire(self.entry(EntryWord::Committed));
        let block_bytes = self.ring.geometry.block_bytes;
        if committed == u64::from(self.at) && self.at < block_bytes {
            return Ok(Look::Other(Poll::Empty));
        }
        let sane = committed <= u64::from(block_bytes)
            && committed >= u64::from(self.at)
            && committed.is_multiple_of(4)
            && (self.at > 0
                || self.entry(EntryWord::FirstOrdinal).load(Ordering::Relaxed) == self.ordinal);
        if !sane {
            // The entry may have been reclaimed between the loads.
            if self.confirm() {
                return Err(self.corrupt("the index entry of this block"));
            }
            return self.lapped_now().map(Look::Other);
        }
        let bytes = committed as u32;
        let until = self.until(bytes);
        if until <= self.at && bytes < block_bytes {
            self.seen = bytes;
            return Ok(Look::Other(Poll::Empty));
        }
        Ok(Look::Committed { bytes, until: until.max(self.at) })
    }

    /// Returns the position up to which records are read now.
    #[inline]
    fn until(&self, committed: u32) -> u32 {
        let is_quiet = committed == self.seen || committed == self.ring.geometry.block_bytes;
        if is_quiet { committed } else { committed.saturating_sub(self.distance) }
    }

    /// Returns the result for an index entry that holds another block than the reader's.
    fn look_elsewhere(&mut self, seq: u64) -> Result<Poll, RingError> {
        if seq > seq_of(self.block) {
            return self.lapped_now();
        }
        // The block is not opened yet. `Closed` is set after the last block was opened, so `Opened` must be loaded
        // again after it.
        if self.ring.is_closed() && self.ring.writer_word(WriterWord::Opened) <= self.block {
            self.ended = true;
            return Ok(Poll::Closed);
        }
        Ok(Poll::Empty)
    }

    /// Whether the index entry still holds the reader's block. Then everything that was loaded before is valid.
    fn confirm(&self) -> bool {
        fence(Ordering::Acquire); // B, pairs with A in Writer: new bytes imply the claim is seen
        self.entry(EntryWord::Seq).load(Ordering::Relaxed) == seq_of(self.block)
    }

    fn advance(&mut self, at: u32, frames: u64) -> Result<(), RingError> {
        let ordinal = self.ordinal.checked_add(frames);
        self.ordinal = ordinal.ok_or_else(|| self.corrupt("frame ordinals overflow"))?;
        self.at = at;
        Ok(())
    }

    pub(crate) fn corrupt(&self, what: &'static str) -> RingError {
        RingError::Corrupt { block: self.block, offset: self.at, what }
    }

    #[inline]
    fn entry(&self, word: EntryWord) -> &AtomicU64 {
        &self.ring.words()[self.ring.geometry.entry_word(self.block, word)]
    }

    #[inline]
    fn block_words(&self) -> &[AtomicU64] {
        let start = self.ring.geometry.block_word(self.block);
        &self.ring.words()[start..start + self.ring.geometry.block_words()]
    }
}

enum Look {
    /// `bytes` of the block are committed. Records that end at or before `until` are read now, and the record at the
    /// cursor in any case.
    Committed {
        bytes: u32,
        until: u32,
    },
    Other(Poll),
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Writer;
    use crate::testing::{heap_ring, meta};
    use weir_frame::record::Meta;

    type Memory = Vec<AtomicU64>;

    fn set(ring: &Ring<Memory>, block: u64, word: EntryWord, value: u64) {
        ring.words()[ring.geometry().entry_word(block, word)].store(value, Ordering::Relaxed);
    }

    #[test]
    fn a_reader_of_a_mapping_can_be_cloned() {
        fn is_clone<T: Clone>() {}
        is_clone::<Reader<crate::Mapping>>();
    }

    #[test]
    fn counting_for_no_frames_is_no_corruption() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        writer.push(&meta(0), &[1; 60]);
        writer.publish();
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut tally = Tally::default();
        assert_eq!(reader.count_in_place(&mut tally, 0).unwrap(), Poll::Empty);
        assert_eq!(reader.count_in_place(&mut tally, 9).unwrap(), Poll::Frames(1));
    }

    #[test]
    fn a_frame_longer_than_a_chunk_comes_whole() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let frames = [
            vec![1; 60],
            vec![2; weir_frame::record::CAPLEN_MAX as usize],
            vec![3; 61],
            vec![4; 17_000],
            vec![],
        ];
        for (ordinal, frame) in frames.iter().enumerate() {
            writer.push(&meta(ordinal as u64), frame);
        }
        writer.close();
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        let mut seen = Vec::new();
        while let Poll::Frames(_) = reader.poll(&mut batch).unwrap() {
            seen.extend(batch.records().map(|record| record.frame.to_vec()));
        }
        assert_eq!(seen, frames);
        assert!(reader.has_ended());
    }

    #[test]
    fn overtaken_it_lands_half_a_ring_behind_and_is_not_lapped_again_at_once() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        let mut pushed = 0;
        let mut fill_block = |writer: &mut Writer<Memory>| {
            for _ in 0..100 {
                writer.push(&meta(pushed), &[1; 2000]);
                pushed += 1;
            }
            writer.close_block();
        };
        for _ in 0..5 {
            fill_block(&mut writer);
        }
        // Blocks 1 to 4 are there; half a ring behind the newest is block 2.
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Lapped(200));
        fill_block(&mut writer);
        assert!(matches!(reader.poll(&mut batch).unwrap(), Poll::Frames(_)));
        assert_eq!(batch.records().next().unwrap().meta, meta(200));
        assert_eq!((reader.lapped(), reader.delivered()), (200, reader.ordinal() - 200));
    }

    #[test]
    fn having_read_all_of_an_overtaken_block_is_no_loss() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut tally = Tally::default();
        writer.push(&meta(0), &[]);
        writer.close_block();
        assert_eq!(reader.count_in_place(&mut tally, 10).unwrap(), Poll::Frames(1));
        for ordinal in 1..5 {
            writer.push(&meta(ordinal), &[]);
            writer.close_block();
        }
        // Block 0 is gone and was read. Block 1 is the next one to go: it is passed over, and counted.
        assert_eq!(reader.count_in_place(&mut tally, 10).unwrap(), Poll::Lapped(1));
        assert_eq!(reader.count_in_place(&mut tally, 10).unwrap(), Poll::Frames(1));
        assert_eq!(reader.ordinal(), 3);
    }

    #[test]
    fn a_place_that_cannot_be_found_loses_no_count() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        for ordinal in 0..6 {
            writer.push(&meta(ordinal), &[]);
            writer.close_block();
        }
        // Every entry looks claimed, as if the writer were always just there.
        for block in 2..6 {
            set(&ring, block, EntryWord::Seq, seq_of(block + 4) - 1);
        }
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Empty);
        assert_eq!((reader.ordinal(), reader.lapped()), (0, 0));
        for block in 2..6 {
            set(&ring, block, EntryWord::Seq, seq_of(block));
        }
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Lapped(3));
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
        assert_eq!(batch.records().next().unwrap().meta, meta(3));
    }

    #[test]
    fn a_new_reader_never_counts_what_came_before_it_as_lapped() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        for ordinal in 0..6 {
            writer.push(&meta(ordinal), &[]);
            writer.close_block();
        }
        for (start, joined_at) in [(Start::Oldest, 3), (Start::Newest, 5)] {
            let reader = Reader::new(&ring, start).unwrap();
            assert_eq!((reader.joined_at(), reader.ordinal()), (joined_at, joined_at));
        }
        for block in 2..6 {
            set(&ring, block, EntryWord::Seq, 1);
        }
        for start in [Start::Oldest, Start::Newest] {
            assert!(matches!(Reader::new(&ring, start), Err(RingError::Corrupt { .. })));
        }
    }

    #[test]
    fn from_a_distance_the_newest_frames_come_once_the_writer_rests() {
        for (how, distance) in [(0, 1000), (1, 1000), (0, 1096), (1, 1096), (0, 1040), (1, 1040)] {
            let ring = heap_ring();
            let mut writer = Writer::new(ring.clone());
            let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
            reader.keep_distance(distance);
            // Looks until there is nothing more, and once in any case.
            let mut drain = || {
                let (mut batch, mut tally, mut frames) = (Batch::new(), Tally::default(), 0);
                loop {
                    let poll = match how {
                        0 => reader.poll(&mut batch).unwrap(),
                        _ => reader.count_in_place(&mut tally, u32::MAX).unwrap(),
                    };
                    match poll {
                        Poll::Frames(more) => frames += more,
                        _ => return (frames, poll),
                    }
                }
            };
            let mut push = |frames| {
                for _ in 0..frames {
                    writer.push(&Meta::default(), &[0; 68]);
                }
                writer.publish();
            };
            // Records of 100 bytes.
            push(10);
            assert_eq!(drain(), (0, Poll::Empty));
            push(5);
            assert_eq!(drain(), (5, Poll::Empty));
            push(1);
            assert_eq!(drain(), (1, Poll::Empty));
            // Not moved since.
            assert_eq!(drain(), (10, Poll::Empty));
            push(3);
            assert_eq!(drain(), (0, Poll::Empty));
            writer.close();
            assert_eq!(drain(), (3, Poll::Closed));
        }
    }

    #[test]
    fn blocks_without_frames_are_passed_over_and_bounded() {
        // A block of a BPF writer that could not read any of its frames.
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        writer.push(&meta(0), &[]);
        writer.close_block();
        writer.push(&meta(1), &[]);
        writer.close_block();
        let empty = ring.geometry().block_word(0);
        let bytes = ring.geometry().block_bytes;
        ring.words()[empty]
            .store(u64::from(bytes) << 32 | u64::from(PADDING_TYPE), Ordering::Relaxed);
        set(&ring, 1, EntryWord::FirstOrdinal, 0);
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
        assert_eq!(batch.records().next().unwrap().meta, meta(1));
    }

    #[test]
    fn ordinals_that_do_not_add_up_are_corruption() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        for ordinal in 0..2 {
            writer.push(&meta(ordinal), &[]);
            writer.close_block();
        }
        set(&ring, 1, EntryWord::FirstOrdinal, 7);
        let mut reader = Reader::new(&ring, Start::Oldest).unwrap();
        let mut batch = Batch::new();
        assert_eq!(reader.poll(&mut batch).unwrap(), Poll::Frames(1));
        for _ in 0..2 {
            assert!(matches!(reader.poll(&mut batch), Err(RingError::Corrupt { block: 1, .. })));
        }
    }
}
