//! The reading half: any number of readers, each with a cursor of its own, none of them seen by the
//! writer.
//!
//! A reader copies, confirms that the block was not reclaimed meanwhile, and only then parses its copy:
//! the reader half of a seqlock (Boehm, "Can seqlocks get along with programming language memory
//! models?", MSPC 2012). Overtaken, it learns the exact number of frames it missed from the ordinal
//! in the index.

use crate::batch::{Batch, WalkEnd, chunk_bytes};
use crate::error::RingError;
use crate::geometry::{EntryWord, PADDING_TYPE, WriterWord, seq_of};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::{Ring, Words};
use weir_frame::record::{EPB_TYPE, HEADER_BYTES, TRAILER_BYTES, padded};

/// Where a new reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the oldest frame that is still safe to read: half a ring back, at most.
    Oldest,
    /// With the first frame of the block being written now.
    Newest,
}

/// What a [`Reader::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Frames were delivered.
    Frames(u32),
    /// Nothing new yet.
    Empty,
    /// The writer overtook this reader, which missed exactly this many frames and now stands half a
    /// ring behind the writer. Loss is a result, not an error.
    Lapped(u64),
    /// The writer has closed the ring and everything was read.
    Closed,
}

/// Frames counted without being copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames.
    pub frames: u64,
    /// Bytes kept of them.
    pub kept_bytes: u64,
    /// Bytes of them on the wire.
    pub wire_bytes: u64,
    /// Timestamp of the newest, nanoseconds since the Unix epoch.
    pub last_ns: u64,
}

/// A cursor in a ring.
///
/// Two ways to read: [`poll`](Reader::poll) copies records into a [`Batch`]; [`skim`](Reader::skim)
/// counts them where they lie. Neither lends bytes that the writer may be changing.
#[derive(Clone)]
pub struct Reader<M: Words> {
    ring: Ring<M>,
    block: u64,
    at: u32,
    /// Ordinal of the next frame.
    ordinal: u64,
    joined_at: u64,
    lapped: u64,
}

/// How often a reader that keeps being lapped while it looks for its new place tries again before it
/// says `Empty` and lets the caller breathe.
const RELOCATE_TRIES: u32 = 64;

impl<M: Words> Reader<M> {
    /// A reader of `ring`.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the ring contradicts itself.
    pub fn new(ring: &Ring<M>, start: Start) -> Result<Self, RingError> {
        let mut reader =
            Reader { ring: ring.clone(), block: 0, at: 0, ordinal: 0, joined_at: 0, lapped: 0 };
        let opened = ring.writer_word(WriterWord::Opened);
        let behind = match start {
            Start::Oldest => ring.geometry().data_blocks / 2,
            Start::Newest => 0,
        };
        if let Some(newest) = opened.checked_sub(1)
            && (start == Start::Newest || newest >= ring.geometry().data_blocks)
        {
            reader.relocate(newest.saturating_sub(behind))?;
        }
        reader.joined_at = reader.ordinal;
        reader.lapped = 0;
        Ok(reader)
    }

    /// The ring it reads.
    #[must_use]
    pub fn ring(&self) -> &Ring<M> {
        &self.ring
    }

    /// Ordinal of the next frame: how many the ring had before it.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        self.ordinal
    }

    /// Ordinal of the first frame this reader could have had.
    #[must_use]
    pub fn joined_at(&self) -> u64 {
        self.joined_at
    }

    /// Frames that this reader missed so far.
    #[must_use]
    pub fn lapped(&self) -> u64 {
        self.lapped
    }

    /// Frames that were delivered so far: `captured = delivered + lapped`, from `joined_at` on.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.ordinal - self.joined_at - self.lapped
    }

    /// Copies the next records into `batch` and moves past them.
    ///
    /// A batch never spans two blocks and holds about 16 KiB, or one longer record. `Poll::Frames(n)`
    /// counts frames. The batch is empty unless frames were delivered.
    ///
    /// # Errors
    /// [`RingError::Corrupt`] if the memory contradicts itself while its block is not being reclaimed.
    /// The reader stays where it is and says the same when asked again.
    pub fn poll(&mut self, batch: &mut Batch) -> Result<Poll, RingError> {
        batch.clear();
        loop {
            let committed = match self.look()? {
                Look::Committed(bytes) => bytes,
                Look::Other(poll) => return Ok(poll),
            };
            if committed == self.at {
                if committed == self.ring.geometry.block_bytes {
                    self.step();
                    continue;
                }
                return Ok(Poll::Empty);
            }
            let ready = committed - self.at;
            let mut bytes = ready.min(chunk_bytes());
            loop {
                batch.copy(self.block_words(), self.at, bytes);
                if !self.confirm() {
                    batch.clear();
                    return self.lapped_now();
                }
                let (used, end) = batch.keep_whole();
                if used > 0 {
                    self.advance(self.at + used, batch.len() as u64)?;
                    return Ok(Poll::Frames(batch.len() as u32));
                }
                match end {
                    WalkEnd::CutOff { need } if bytes < ready => {
                        if need > u64::from(self.ring.geometry.record_bytes_max()) {
                            return Err(self.corrupt("record longer than any class"));
                        }
                        bytes = ready.min((need as u32).max(bytes + 1));
                    }
                    WalkEnd::OtherBlock { block_type: PADDING_TYPE, bytes: length }
                        if self.at.checked_add(length) == Some(self.ring.geometry.block_bytes)
                            && committed == self.ring.geometry.block_bytes =>
                    {
                        self.step();
                        break;
                    }
                    _ => return Err(self.corrupt("no whole record where one was committed")),
                }
            }
        }
    }

    /// Counts records where they lie, up to `frames_max` of them, and moves past them.
    ///
    /// Touches one or two cache lines a frame, whatever its length. What it read counts only after
    /// the block is confirmed; a lapped skim adds nothing to `tally`.
    ///
    /// # Errors
    /// As [`poll`](Reader::poll).
    pub fn skim(&mut self, tally: &mut Tally, frames_max: u32) -> Result<Poll, RingError> {
        loop {
            let committed = match self.look()? {
                Look::Committed(bytes) => bytes,
                Look::Other(poll) => return Ok(poll),
            };
            if committed == self.at {
                if committed == self.ring.geometry.block_bytes {
                    self.step();
                    continue;
                }
                return Ok(Poll::Empty);
            }
            let (found, at, end) = skim_words(self.block_words(), self.at, committed, frames_max);
            if !self.confirm() {
                return self.lapped_now();
            }
            if found.frames > 0 {
                self.advance(at, found.frames)?;
                tally.frames += found.frames;
                tally.kept_bytes += found.kept_bytes;
                tally.wire_bytes += found.wire_bytes;
                tally.last_ns = found.last_ns;
                return Ok(Poll::Frames(found.frames as u32));
            }
            match end {
                WalkEnd::OtherBlock { block_type: PADDING_TYPE, bytes }
                    if self.at.checked_add(bytes) == Some(self.ring.geometry.block_bytes)
                        && committed == self.ring.geometry.block_bytes =>
                {
                    self.step();
                }
                _ => return Err(self.corrupt("no whole record where one was committed")),
            }
        }
    }

    /// Loads how far the current block is readable.
    fn look(&mut self) -> Result<Look, RingError> {
        let want = seq_of(self.block);
        // F, pairs with E in Writer: an entry that says `want` is whole.
        let seq = self.entry(EntryWord::Seq).load(Ordering::Acquire);
        if seq != want {
            if seq > want {
                return self.lapped_now().map(Look::Other);
            }
            // Not opened yet. Closed is set after the last block was: look again before believing it.
            if self.ring.is_closed() && self.ring.writer_word(WriterWord::Opened) <= self.block {
                return Ok(Look::Other(Poll::Closed));
            }
            return Ok(Look::Other(Poll::Empty));
        }
        // D, pairs with C in Writer::publish: bytes below `committed` are whole.
        let committed = self.entry(EntryWord::Committed).load(Ordering::Acquire);
        let sane = committed <= u64::from(self.ring.geometry.block_bytes)
            && committed >= u64::from(self.at)
            && committed.is_multiple_of(4);
        if !sane {
            // The entry may have been reclaimed between the two loads.
            if self.confirm() {
                return Err(self.corrupt("committed bytes"));
            }
            return self.lapped_now().map(Look::Other);
        }
        Ok(Look::Committed(committed as u32))
    }

    /// Whether the block is still the one that was looked at; everything loaded before is then good.
    fn confirm(&self) -> bool {
        fence(Ordering::Acquire); // B, pairs with A in Writer: new bytes imply the claim is seen
        self.entry(EntryWord::Seq).load(Ordering::Relaxed) == seq_of(self.block)
    }

    fn step(&mut self) {
        self.block = self.block.wrapping_add(1);
        self.at = 0;
    }

    fn advance(&mut self, at: u32, frames: u64) -> Result<(), RingError> {
        let ordinal = self.ordinal.checked_add(frames);
        self.ordinal = ordinal.ok_or_else(|| self.corrupt("frame ordinals overflow"))?;
        self.at = at;
        Ok(())
    }

    /// Finds a place half a ring behind the writer and says how many frames lie between.
    fn lapped_now(&mut self) -> Result<Poll, RingError> {
        let before = self.ordinal;
        let opened = self.ring.writer_word(WriterWord::Opened);
        let behind = self.ring.geometry.data_blocks / 2;
        let target = opened.saturating_sub(1 + behind).max(self.block.saturating_add(1));
        if !self.relocate(target)? {
            return Ok(Poll::Empty);
        }
        let missed = self.ordinal - before;
        self.lapped += missed;
        Ok(Poll::Lapped(missed))
    }

    /// Moves to the start of block `target`, or a later one if that is reclaimed meanwhile. False if
    /// the writer was too fast for every try; the cursor has not moved then.
    fn relocate(&mut self, target: u64) -> Result<bool, RingError> {
        let mut block = target;
        for _ in 0..RELOCATE_TRIES {
            let seq = self.ring.words()[self.ring.geometry.entry_word(block, EntryWord::Seq)]
                .load(Ordering::Acquire);
            if seq == seq_of(block) {
                let first = self.ring.geometry.entry_word(block, EntryWord::FirstOrdinal);
                let ordinal = self.ring.words()[first].load(Ordering::Relaxed);
                fence(Ordering::Acquire); // B again: the ordinal belongs to this block
                let again = self.ring.words()[self.ring.geometry.entry_word(block, EntryWord::Seq)]
                    .load(Ordering::Relaxed);
                if again == seq {
                    if ordinal < self.ordinal {
                        return Err(self.corrupt("frame ordinals run backwards"));
                    }
                    (self.block, self.at, self.ordinal) = (block, 0, ordinal);
                    return Ok(true);
                }
            }
            let opened = self.ring.writer_word(WriterWord::Opened);
            let behind = self.ring.geometry.data_blocks / 2;
            block = opened.saturating_sub(1 + behind).max(block);
        }
        Ok(false)
    }

    fn corrupt(&self, what: &'static str) -> RingError {
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
    Committed(u32),
    Other(Poll),
}

/// Walks record headers in shared words. Every length is loaded once and bounded by `committed`, so
/// hostile words end the walk and no more.
fn skim_words(
    words: &[AtomicU64],
    mut at: u32,
    committed: u32,
    frames_max: u32,
) -> (Tally, u32, WalkEnd) {
    let half = |at: u32| {
        let word = words[at as usize / 8].load(Ordering::Relaxed);
        if at.is_multiple_of(8) { word as u32 } else { (word >> 32) as u32 }
    };
    let mut tally = Tally::default();
    let end = loop {
        if at == committed || tally.frames == u64::from(frames_max) {
            break WalkEnd::Everything;
        }
        // `at` and `committed` are multiples of 4, so at least one half word is there.
        let left = committed - at;
        if left < HEADER_BYTES + TRAILER_BYTES {
            let bytes = if left >= 8 { half(at + 4) } else { 0 };
            break WalkEnd::OtherBlock { block_type: half(at), bytes };
        }
        let (block_type, bytes) = (half(at), half(at + 4));
        if block_type != EPB_TYPE {
            break WalkEnd::OtherBlock { block_type, bytes };
        }
        let (caplen, wire_len) = (half(at + 20), half(at + 24));
        let least =
            u64::from(HEADER_BYTES + TRAILER_BYTES) + u64::from(padded(caplen.min(u32::MAX - 3)));
        if u64::from(bytes) < least || bytes > left || !bytes.is_multiple_of(4) {
            break WalkEnd::Corrupt;
        }
        tally.frames += 1;
        tally.kept_bytes += u64::from(caplen);
        tally.wire_bytes += u64::from(wire_len);
        tally.last_ns = u64::from(half(at + 12)) << 32 | u64::from(half(at + 16));
        at += bytes;
    };
    (tally, at, end)
}
