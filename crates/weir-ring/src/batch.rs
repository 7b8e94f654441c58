//! A reader's own copy of some records. Later stores of the writer cannot change the copy while it is parsed.

use weir_frame::record::{EPB_TYPE, Outline, Record, RecordError};

use crate::copy;
use crate::geometry::PADDING_MIN_BYTES;
use crate::sync::AtomicU64;

/// Default number of bytes that a poll copies: a few hundred small frames, and half of a first-level cache, so that the
/// copy is still in the cache when it is parsed.
const CHUNK_BYTES: u32 = 16 * 1024;

/// Cache lines of the next chunk that are prefetched while the caller works on the current chunk: about as many as a
/// core can have in flight. 32 were slower.
const FETCHED_LINES: usize = 12;

/// Complete records, copied out of one block. The reader has confirmed that the writer did not overwrite them
/// meanwhile.
///
/// Create one batch and let each [`Reader::poll`](crate::Reader::poll) fill it. Its memory grows only for a record
/// longer than any before.
#[derive(Debug)]
pub struct Batch {
    words: Vec<u64>,
    /// Most bytes that a poll copies, unless a single record is longer.
    chunk_bytes: u32,
    /// Offset in `words` of the first record, in bytes: 0 or 4.
    start: usize,
    /// Offset of the end of the last complete record.
    end: usize,
    frames: u32,
    /// Highest interface id that `keep_whole` found, as the ring numbers interfaces.
    highest_id: u32,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            words: Vec::new(),
            chunk_bytes: CHUNK_BYTES,
            start: 0,
            end: 0,
            frames: 0,
            highest_id: 0,
        }
    }
}

impl Batch {
    /// Creates an empty batch. A poll copies about 16 KiB into it.
    #[must_use]
    pub fn new() -> Self {
        Batch::default()
    }

    /// Sets how many bytes a poll copies, from now on: at least 16 KiB. Larger chunks are for callers that pass the
    /// bytes on, for example to a file, without parsing each frame.
    pub fn set_chunk_bytes(&mut self, bytes: u32) {
        self.chunk_bytes = bytes.max(CHUNK_BYTES);
    }

    pub(crate) fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames as usize
    }

    /// Whether the batch has no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Returns the records, oldest first.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records::of(self.block_bytes())
    }

    /// Returns the same records as consecutive pcapng blocks, which can be written to a file unchanged.
    #[must_use]
    pub fn block_bytes(&self) -> &[u8] {
        &self.bytes()[self.start..self.end]
    }

    /// Returns the highest interface id that [`Reader::poll`](crate::Reader::poll) found among the records, as the ring
    /// numbers interfaces; 0 if there were none.
    #[must_use]
    pub fn highest_interface_id(&self) -> u32 {
        self.highest_id
    }

    /// Replaces the interface id of each record by the result of `number`: for a merge of rings, whose output numbers
    /// interfaces differently from the rings.
    pub fn renumber(&mut self, mut number: impl FnMut(u32) -> u32) {
        let (mut at, mut left) = (self.start, self.frames);
        // All records are complete (`keep_whole`), and the lengths in this copy do not change.
        while left > 0 {
            let (bytes, id) = (self.half(at + 4), self.half(at + 8));
            self.set_half(at + 8, number(id));
            at += bytes as usize;
            left -= 1;
        }
    }

    /// Removes all records but the first `frames`.
    pub fn truncate(&mut self, frames: u32) {
        if frames < self.frames {
            let bytes: usize =
                self.records().take(frames as usize).map(|record| record.block.len()).sum();
            (self.end, self.frames) = (self.start + bytes, frames);
        }
    }

    /// Returns the 32 bits at byte `at`, a multiple of 4.
    fn half(&self, at: usize) -> u32 {
        (self.words[at / 8] >> (at % 8 * 8)) as u32
    }

    fn set_half(&mut self, at: usize, value: u32) {
        let shift = at % 8 * 8;
        let word = &mut self.words[at / 8];
        *word = *word & !(u64::from(u32::MAX) << shift) | u64::from(value) << shift;
    }

    pub(crate) fn clear(&mut self) {
        (self.start, self.end, self.frames, self.highest_id) = (0, 0, 0, 0);
    }

    /// Copies `bytes` bytes from byte `at` of a block. The batch has no frames until [`keep_whole`](Batch::keep_whole)
    /// has counted them.
    pub(crate) fn copy(&mut self, words: &[AtomicU64], at: u32, bytes: u32) {
        let first = at as usize / 8;
        let last = (at + bytes).div_ceil(8) as usize;
        let count = last - first;
        if self.words.len() < count {
            self.words.resize(count, 0);
        }
        copy::load(&mut self.words[..count], &words[first..last]);
        self.start = at as usize % 8;
        self.end = self.start + bytes as usize;
        (self.frames, self.highest_id) = (0, 0);
    }

    /// Prefetches the first cache lines of the bytes that the next call of [`copy`](Batch::copy) copies.
    pub(crate) fn fetch(&self, words: &[AtomicU64], at: u32, until: u32) {
        for line in (at..until).step_by(64).take(FETCHED_LINES) {
            copy::prefetch(words, line);
        }
    }

    /// Walks over the copied bytes and drops those after the last complete record. Returns the number of bytes that the
    /// complete records have, and why the walk stopped.
    pub(crate) fn keep_whole(&mut self) -> (u32, WalkEnd) {
        let (start, end) = (self.start, self.end);
        let bytes = &self.bytes()[start..end];
        let (mut at, mut frames, mut highest_id) = (0, 0, 0);
        let walk_end = loop {
            if at == bytes.len() {
                break WalkEnd::Everything;
            }
            // The block type is checked before the length: a padding block may be shorter than any record.
            let Some(head) = bytes[at..].first_chunk::<8>() else {
                break WalkEnd::CutOff { need: u64::from(PADDING_MIN_BYTES) };
            };
            let [block_type, length] = [0, 4]
                .map(|i| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]));
            if block_type != EPB_TYPE {
                break WalkEnd::OtherBlock { block_type, bytes: length };
            }
            match Outline::read(&bytes[at..]) {
                Ok(outline) => {
                    at += outline.block_bytes as usize;
                    frames += 1;
                    highest_id = outline.interface_id.max(highest_id);
                }
                Err(RecordError::CutOff { need, .. }) => {
                    break WalkEnd::CutOff { need: need as u64 };
                }
                Err(_) => break WalkEnd::Corrupt,
            }
        };
        self.end = self.start + at;
        (self.frames, self.highest_id) = (frames, highest_id);
        (at as u32, walk_end)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the pointer and length are those of a live `&[u64]`, borrowed for as long as the
        // result; a `u64` is eight initialised bytes without padding, and `u8` has no alignment.
        unsafe {
            std::slice::from_raw_parts(self.words.as_ptr().cast::<u8>(), self.words.len() * 8)
        }
    }
}

/// Why a walk over copied records stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkEnd {
    /// The end of the copied bytes.
    Everything,
    /// A record continues behind the copied bytes.
    CutOff { need: u64 },
    /// A block that is not a record of a frame: the padding at the end of a closed block, or corruption.
    OtherBlock { block_type: u32, bytes: u32 },
    /// A record whose fields contradict each other.
    Corrupt,
}

/// Iterator over the records of a [`Batch`], or over a part of them.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
}

impl<'a> Records<'a> {
    /// Creates an iterator over consecutive, complete records.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Records<'a> {
        Records { bytes }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    #[inline]
    fn next(&mut self) -> Option<Record<'a>> {
        // `keep_whole` left only complete records, so parsing fails only at the end.
        let record = Record::parse_again(self.bytes)?;
        self.bytes = &self.bytes[record.block.len()..];
        Some(record)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::testing::meta;
    use weir_frame::record::{self, Meta};

    #[test]
    fn renumbering_changes_ids_and_nothing_else() {
        for offset in [0, 4] {
            let mut bytes = vec![0; offset];
            let mut want = Vec::new();
            for ordinal in 0..50u64 {
                let frame = vec![ordinal as u8; ordinal as usize % 9];
                let of = |interface_id| Meta { interface_id, ..meta(ordinal) };
                record::append(&mut bytes, &of(ordinal as u32 % 3), &frame);
                record::append(&mut want, &of([7, 0, u32::MAX][ordinal as usize % 3]), &frame);
            }
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            let words: Vec<AtomicU64> = (bytes.chunks(8))
                .map(|bytes| AtomicU64::new(u64::from_le_bytes(bytes.try_into().unwrap())))
                .collect();
            let mut batch = Batch::new();
            batch.copy(&words, offset as u32, want.len() as u32);
            assert_eq!(batch.keep_whole(), (want.len() as u32, WalkEnd::Everything));
            assert_eq!(batch.highest_interface_id(), 2);
            batch.renumber(|id| [7, 0, u32::MAX][id as usize]);
            assert!(batch.block_bytes() == want);
            assert_eq!(batch.len(), 50);
            for frames in [60, 50, 7, 0] {
                batch.truncate(frames);
                assert_eq!(batch.len() as u32, frames.min(50));
                assert_eq!(batch.records().count(), batch.len());
                assert!(want.starts_with(batch.block_bytes()));
            }
        }
    }
}
