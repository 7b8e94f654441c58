//! Memory that a source needs.

use weir_ring::geometry::BLOCK_BYTES;

use crate::limits::BUFFER_BYTES_MAX;

/// Memory of a source in addition to the data blocks of its rings, as known before the source is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Rings of each feed. Each ring has an index of 1 MiB.
    pub rings: u64,
    /// Most bytes of buffers in the kernel or a library.
    pub buffer_bytes: u64,
}

impl Memory {
    /// One ring for each feed, no buffers.
    pub const ONE_RING: Memory = Memory { rings: 1, buffer_bytes: 0 };
    /// One ring for each feed, and a buffer in the kernel.
    pub(crate) const BUFFERED: Memory = Memory { rings: 1, buffer_bytes: BUFFER_BYTES_MAX };

    /// Returns the most bytes of memory of a source with `feeds` feeds, each of which has rings of `ring_bytes` in
    /// total.
    #[must_use]
    pub fn total_bytes(self, ring_bytes: u64, feeds: u64) -> u64 {
        let index = self.rings.saturating_mul(u64::from(BLOCK_BYTES));
        feeds.saturating_mul(ring_bytes.saturating_add(index)).saturating_add(self.buffer_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_more_than_the_rings() {
        assert_eq!(Memory::ONE_RING.total_bytes(64 << 20, 1), 65 << 20);
        assert_eq!(Memory::BUFFERED.total_bytes(64 << 20, 1), (65 + 32) << 20);
        assert_eq!(Memory::BUFFERED.total_bytes(64 << 20, 3), (3 * 65 + 32) << 20);
        assert_eq!(Memory::BUFFERED.total_bytes(u64::MAX, 1), u64::MAX);
        let absurd = Memory { rings: u64::MAX, buffer_bytes: 0 };
        assert_eq!(absurd.total_bytes(64 << 20, 1), u64::MAX);
    }
}
