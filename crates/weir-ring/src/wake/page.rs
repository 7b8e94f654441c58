//! The page of thresholds: a line for each ring.

use rustix::fs::SealFlags;

use crate::Words;
use crate::memory::Mapping;
use crate::sync::AtomicU64;

/// Words of a line: two cache lines, because the next one is prefetched on x86.
const LINE_WORDS: usize = 16;
/// Seals that a wake page must have: its size stays, and no hole is punched into it.
pub(super) const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

pub(super) fn page_bytes(lines: usize) -> u64 {
    ((lines * LINE_WORDS * 8) as u64).next_multiple_of(4096)
}

/// The threshold of a ring.
pub(super) fn line(page: &Mapping, ring: usize) -> &AtomicU64 {
    &page.words()[ring * LINE_WORDS]
}

/// How far the consumer had read a ring when it last said so: the ordinal of its next frame. On the second cache line,
/// since writers look at the first one all the time.
pub(super) fn position(page: &Mapping, ring: usize) -> &AtomicU64 {
    &page.words()[ring * LINE_WORDS + LINE_WORDS / 2]
}
