//! The writing half of the algorithm: one thread, which never waits.
//!
//! A block goes through four states, which its index entry shows:
//!
//! ```text
//! seq = 2b+1            claimed: a reader of the old block here is lapped
//! seq = 2b+2            open: `committed` grows, records below it are whole
//! committed = size      closed: a padding block ends it, nothing in it changes any more
//! seq = 2(b+N)+1        claimed for the block N later
//! ```

use weir_frame::record::{self, CAPLEN_MAX, Flags, Meta};

use crate::copy;
use crate::geometry::{EntryWord, PADDING_TYPE, WriterWord, seq_of};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::{Ring, Words};

/// The one writer of a ring.
///
/// [`publish`](Writer::publish) makes records visible. It stores to a cache line that readers load, so call it once for
/// each burst. Dropping the writer publishes and closes the ring.
pub struct Writer<M: Words> {
    ring: Ring<M>,
    /// Number of the open block; not valid while `open` is false.
    block: u64,
    open: bool,
    /// Offset of the next free byte of the open block.
    at: u32,
    frames_in_block: u64,
    last_ns: u64,
    totals: Totals,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    frames: u64,
    kept_bytes: u64,
    wire_bytes: u64,
    super_frames: u64,
}

impl<M: Words> Writer<M> {
    /// Creates the writer of a freshly formatted ring, whose memory is zero except for block 0. In the first round the
    /// writer relies on that: it does not store the zeros of padding.
    ///
    /// There must be only one writer. A second writer would be a bug of this program: readers survive it, because they
    /// parse their own copies, but their counts would be wrong.
    ///
    /// # Panics
    /// If the ring has been written before, or its memory is mapped read-only.
    #[must_use]
    pub fn new(ring: Ring<M>) -> Self {
        assert!(ring.memory.is_writable(), "a reader's mapping cannot be written");
        assert_eq!(ring.writer_word(WriterWord::Opened), 0, "a ring is written once");
        Writer {
            ring,
            block: 0,
            open: false,
            at: 0,
            frames_in_block: 0,
            last_ns: 0,
            totals: Totals::default(),
        }
    }

    /// Returns the ring, for attaching readers.
    #[must_use]
    pub fn ring(&self) -> &Ring<M> {
        &self.ring
    }

    /// Returns the number of frames written so far, whether published or not.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.totals.frames
    }

    /// Writes one frame, cut at [`CAPLEN_MAX`]. If the frame's size class does not fit into the open block, closes the
    /// block and opens the next one, which overwrites the oldest block.
    ///
    /// # Panics
    /// If the ring was closed: readers have been told that no more frames will come.
    #[inline]
    pub fn push(&mut self, meta: &Meta, frame: &[u8]) {
        self.push_one(meta, frame);
    }

    /// Writes frames one after another, each as [`push`](Writer::push) does: for a burst of which all frames are
    /// available.
    ///
    /// # Panics
    /// As [`push`](Writer::push).
    #[inline]
    pub fn push_burst<'a>(&mut self, frames: impl Iterator<Item = (Meta, &'a [u8])>) {
        for (meta, frame) in frames {
            self.push_one(&meta, frame);
        }
    }

    // Always inlined, so that a burst is one loop: the compiler moves decisions about common properties of the frames
    // (for example, no options) out of the loop.
    #[inline(always)]
    fn push_one(&mut self, meta: &Meta, frame: &[u8]) {
        let frame = &frame[..frame.len().min(CAPLEN_MAX as usize)];
        let caplen = frame.len() as u32;
        let room = self.ring.geometry.room_for(caplen);
        if !self.open || self.at + room > self.ring.geometry.block_bytes {
            self.next_block(meta.ts_ns);
        }
        let bytes = record::record_bytes(meta, caplen);
        let words = self.block_words();
        copy::store_record(words, self.at, meta, frame);
        self.at += bytes;
        self.frames_in_block += 1;
        self.last_ns = meta.ts_ns;
        self.totals.frames += 1;
        self.totals.kept_bytes += u64::from(caplen);
        self.totals.wire_bytes += u64::from(meta.wire_len);
        if meta.flags.is_some_and(|flags| flags.has(Flags::SUPER_FRAME)) {
            self.totals.super_frames += 1;
        }
    }

    /// Makes everything written so far visible.
    #[inline]
    pub fn publish(&mut self) {
        if !self.open {
            return;
        }
        self.entry(EntryWord::Frames).store(self.frames_in_block, Ordering::Relaxed);
        self.entry(EntryWord::LastNs).store(self.last_ns, Ordering::Relaxed);
        // C, pairs with D in Reader::poll: records are complete before they are published.
        self.entry(EntryWord::Committed).store(u64::from(self.at), Ordering::Release);
        let Totals { frames, kept_bytes, wire_bytes, super_frames } = self.totals;
        self.word(WriterWord::KeptBytes).store(kept_bytes, Ordering::Relaxed);
        self.word(WriterWord::WireBytes).store(wire_bytes, Ordering::Relaxed);
        self.word(WriterWord::SuperFrames).store(super_frames, Ordering::Relaxed);
        // K, pairs with L in Ring::writer_word: counted frames can be read.
        self.word(WriterWord::Ordinal).store(frames, Ordering::Release);
    }

    /// Ends the open block with a padding block, so that it can be written to disk unchanged. The next frame opens a
    /// new block.
    pub fn close_block(&mut self) {
        if !self.open {
            return;
        }
        // In the first round, memory to which nothing was written is zero (`header::format`).
        let is_fresh = self.block < self.ring.geometry.data_blocks;
        store_padding(self.block_words(), self.at, is_fresh);
        self.at = self.ring.geometry.block_bytes;
        self.publish();
        self.block += 1;
        self.open = false;
    }

    /// Closes the ring: no more frames will come. Readers read the remaining frames and then see the end.
    pub fn close(&mut self) {
        self.close_block();
        // M, pairs with N in Ring::writer_word: the end comes after every frame.
        self.word(WriterWord::Closed).store(1, Ordering::Release);
    }

    #[cold]
    fn next_block(&mut self, first_ns: u64) {
        self.close_block();
        assert_eq!(self.ring.writer_word(WriterWord::Closed), 0, "a closed ring stays closed");
        let seq = seq_of(self.block);
        self.entry(EntryWord::Seq).store(seq - 1, Ordering::Relaxed);
        fence(Ordering::Release); // A, pairs with B in Reader: the claim is seen before new bytes
        self.entry(EntryWord::Committed).store(0, Ordering::Relaxed);
        self.entry(EntryWord::Frames).store(0, Ordering::Relaxed);
        self.entry(EntryWord::FirstOrdinal).store(self.totals.frames, Ordering::Relaxed);
        self.entry(EntryWord::FirstNs).store(first_ns, Ordering::Relaxed);
        self.entry(EntryWord::LastNs).store(first_ns, Ordering::Relaxed);
        // E, pairs with F in Reader: the entry is complete before its block is announced.
        self.entry(EntryWord::Seq).store(seq, Ordering::Release);
        // I, pairs with J in Ring::writer_word: the newest block is visible.
        self.word(WriterWord::Opened).store(self.block + 1, Ordering::Release);
        self.open = true;
        self.at = 0;
        self.frames_in_block = 0;
    }

    #[inline]
    fn entry(&self, word: EntryWord) -> &AtomicU64 {
        &self.ring.words()[self.ring.geometry.entry_word(self.block, word)]
    }

    fn word(&self, word: WriterWord) -> &AtomicU64 {
        &self.ring.words()[self.ring.geometry.writer_word(word)]
    }

    #[inline]
    fn block_words(&self) -> &[AtomicU64] {
        let start = self.ring.geometry.block_word(self.block);
        &self.ring.words()[start..start + self.ring.geometry.block_words()]
    }
}

impl<M: Words> Drop for Writer<M> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Ends a block: stores a padding block from `at` to the end, and its zeros unless the memory is zero already.
#[cold]
fn store_padding(words: &[AtomicU64], at: u32, is_zero: bool) {
    let bytes = words.len() as u32 * 8 - at;
    let first = at as usize / 8;
    let body = if at.is_multiple_of(8) {
        words[first].store(copy::join(PADDING_TYPE, bytes), Ordering::Relaxed);
        first + 1
    } else {
        let kept = words[first].load(Ordering::Relaxed) as u32;
        words[first].store(copy::join(kept, PADDING_TYPE), Ordering::Relaxed);
        words[first + 1].store(u64::from(bytes), Ordering::Relaxed);
        first + 2
    };
    let last = words.len() - 1;
    if !is_zero {
        words[body.min(last)..last].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
    // The closing length is the upper half of the last word. The lower half is zero, unless the padding block is the
    // smallest possible: then the lower half is its opening length.
    let low = if body > last { bytes } else { 0 };
    words[last].store(copy::join(low, bytes), Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::geometry::{BLOCK_BYTES, CLASSES};
    use crate::testing::{heap_ring, meta, zeroed};
    use weir_frame::pcapng;

    fn bytes(words: &[AtomicU64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect()
    }

    #[test]
    fn a_record_is_the_same_bytes_as_in_a_file() {
        // Every length around the ends of words, with each set of options, at both alignments.
        let mut writer = Writer::new(heap_ring());
        let mut want = Vec::new();
        let mut alignments = [0; 2];
        for ordinal in 0..3000u64 {
            let frame: Vec<u8> = (0..ordinal % 19).map(|i| (ordinal * 7 + i) as u8 | 1).collect();
            alignments[want.len() % 8 / 4] += 1;
            writer.push(&meta(ordinal), &frame);
            record::append(&mut want, &meta(ordinal), &frame);
        }
        assert!(alignments.iter().all(|&count| count > 500), "{alignments:?}");
        assert_eq!(writer.at as usize, want.len());
        assert!(bytes(writer.block_words())[..want.len()] == want);
        writer.publish();
        let committed = writer.entry(EntryWord::Committed).load(Ordering::Relaxed);
        assert_eq!(committed, want.len() as u64);
    }

    #[test]
    fn padding_ends_a_block_from_every_offset_and_touches_nothing_before() {
        const BYTES: u32 = 512;
        for at in (0..=BYTES - 12).step_by(4) {
            for is_zero in [false, true] {
                let words = zeroed(BYTES as usize / 8);
                let before = if is_zero { &words[..at.div_ceil(8) as usize] } else { &words[..] };
                before.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
                store_padding(&words, at, is_zero);
                let mut want = vec![0xff; at as usize];
                pcapng::write::padding_block(&mut want, BYTES - at);
                assert_eq!(bytes(&words), want, "padding from {at}, zero {is_zero}");
            }
        }
    }

    #[test]
    fn a_block_that_comes_again_keeps_nothing_of_what_it_held() {
        let mut writer = Writer::new(heap_ring());
        let blocks = writer.ring.geometry.data_blocks;
        for _ in 0..blocks {
            // The first one opens the block.
            writer.push(&meta(0), b"frame");
            fill_to(&mut writer, BLOCK_BYTES - 5000);
            writer.close_block();
        }
        writer.push(&meta(0), b"frame");
        let (at, block) = (writer.at, writer.block);
        assert_eq!(block, blocks);
        writer.close_block();
        let start = writer.ring.geometry.block_word(block);
        let words = &writer.ring.words()[start..start + writer.ring.geometry.block_words()];
        let mut want = bytes(words)[..at as usize].to_vec();
        pcapng::write::padding_block(&mut want, BLOCK_BYTES - at);
        assert!(bytes(words) == want);
    }

    /// Fills the open block up to exactly `at` with frames of the smallest class.
    fn fill_to(writer: &mut Writer<Vec<AtomicU64>>, at: u32) {
        let plain = Meta::default();
        loop {
            let left = at - writer.at;
            let frame = match left {
                0 => return,
                1..=2000 => left - 32,
                _ => 1000,
            };
            writer.push(&plain, &vec![7; frame as usize]);
        }
    }

    #[test]
    fn a_record_begins_exactly_where_its_class_still_fits() {
        let both = Meta { flags: Some(Flags::INBOUND), queue: Some(1), ..Meta::default() };
        for class in CLASSES {
            let last = BLOCK_BYTES - class.room;
            // The longest frame of the class, and one byte more (cut, for the longest class).
            for (at, caplen, block) in [
                (last, class.caplen_max, 0),
                (last, class.caplen_max + 1, u64::from(class.caplen_max != CAPLEN_MAX)),
                (last, 0, 0),
            ] {
                let mut writer = Writer::new(heap_ring());
                fill_to(&mut writer, at);
                assert_eq!((writer.block, writer.at), (0, last));
                writer.push(&both, &vec![1; caplen as usize]);
                assert_eq!(writer.block, block, "caplen {caplen} at {at}");
                writer.close_block();
            }
        }
        // Four bytes further, the smallest class does not fit either.
        let mut writer = Writer::new(heap_ring());
        fill_to(&mut writer, BLOCK_BYTES - CLASSES[0].room + 4);
        writer.push(&both, &[]);
        assert_eq!(writer.block, 1);
    }

    #[test]
    #[should_panic(expected = "a closed ring stays closed")]
    fn a_closed_ring_is_not_written() {
        let mut writer = Writer::new(heap_ring());
        writer.close();
        writer.push(&Meta::default(), &[]);
    }
}
