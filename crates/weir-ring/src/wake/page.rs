//! The wake page: a line with a threshold for each ring.

use rustix::fs::SealFlags;

use crate::Words;
use crate::memory::Mapping;
use crate::sync::AtomicU64;

/// Words of a line: two cache lines, because x86 processors prefetch the adjacent line.
const LINE_WORDS: usize = 16;
/// Seals that a wake page must have: its size cannot change, and no hole can be punched into it.
pub(super) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

pub(super) fn page_bytes(lines: usize) -> u64 {
    ((lines * LINE_WORDS * 8) as u64).next_multiple_of(4096)
}

/// Returns the word with the threshold of a ring.
pub(super) fn line(page: &Mapping, ring: usize) -> &AtomicU64 {
    &page.words()[ring * LINE_WORDS]
}

/// Returns the word that says how far the consumer has read a ring: the ordinal of its next frame, as last reported. It
/// is on the second cache line, since writers load the first one all the time.
pub(super) fn position(page: &Mapping, ring: usize) -> &AtomicU64 {
    &page.words()[ring * LINE_WORDS + LINE_WORDS / 2]
}
