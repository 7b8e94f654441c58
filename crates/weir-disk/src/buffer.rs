//! Buffers for direct writes.

use std::sync::atomic::Ordering::Relaxed;

use weir_ring::AtomicU64;

use crate::memory::{Memory, PAGE_BYTES};

/// Address, length and file offset of a direct write are multiples of this number of bytes. It is the largest block
/// size of common disks. Files for which `statx` (`STATX_DIOALIGN`) reports a larger alignment are not written
/// directly.
pub const ALIGN_BYTES: usize = PAGE_BYTES;

/// Memory aligned for direct writes, filled from the front. Its size is fixed.
pub struct Buffer {
    memory: Memory,
    filled: usize,
}

impl Buffer {
    /// Creates a buffer for `bytes` bytes, rounded up to [`ALIGN_BYTES`].
    #[must_use]
    pub fn new(bytes: usize) -> Buffer {
        Buffer { memory: Memory::new(Buffer::rounded(bytes)), filled: 0 }
    }

    /// Returns the capacity of a buffer that is created for `bytes` bytes.
    pub(crate) fn rounded(bytes: usize) -> usize {
        bytes.max(1).next_multiple_of(ALIGN_BYTES)
    }

    /// Returns the number of bytes that the buffer can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Returns the number of bytes that the buffer holds.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Returns the number of bytes that can still be added.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.capacity() - self.filled
    }

    /// Returns the number of bytes to add until [`filled`](Buffer::filled) is a multiple of [`ALIGN_BYTES`], as a write
    /// requires.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.filled.next_multiple_of(ALIGN_BYTES) - self.filled
    }

    /// Returns the bytes that the buffer holds.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.memory.bytes()[..self.filled]
    }

    /// Returns the bytes that the buffer holds, for changes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let filled = self.filled;
        &mut self.memory.bytes_mut()[..filled]
    }

    /// Appends bytes.
    ///
    /// # Panics
    /// If they do not fit: see [`remaining`](Buffer::remaining).
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.grow(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends `bytes` bytes, and returns them for writing. Their contents are unspecified.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn grow(&mut self, bytes: usize) -> &mut [u8] {
        let (from, room) = (self.filled, self.remaining());
        assert!(bytes <= room, "{bytes} bytes for a buffer with room for {room}");
        self.filled += bytes;
        &mut self.memory.bytes_mut()[from..from + bytes]
    }

    /// Appends zeros up to a multiple of [`ALIGN_BYTES`], for formats that allow them.
    pub fn pad(&mut self) {
        let missing = self.missing();
        self.grow(missing).fill(0);
    }

    /// Removes all but the first `bytes` bytes.
    ///
    /// # Panics
    /// If the buffer holds fewer.
    pub fn truncate(&mut self, bytes: usize) {
        assert!(bytes <= self.filled, "{bytes} of {} bytes", self.filled);
        self.filled = bytes;
    }

    /// Removes all bytes. The memory stays allocated.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Replaces the contents by these words of a ring. The words are loaded atomically, because the ring's writer may
    /// be changing them.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn fill_from_ring(&mut self, words: &[AtomicU64]) {
        let (bytes, room) = (words.len() * 8, self.capacity());
        assert!(bytes <= room, "{bytes} bytes for a buffer of {room}");
        let (own, _) = self.memory.bytes_mut().as_chunks_mut::<8>();
        for (own, shared) in own.iter_mut().zip(words) {
            *own = shared.load(Relaxed).to_ne_bytes();
        }
        self.filled = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_keeps_its_memory() {
        let mut buffer = Buffer::new(5000);
        assert_eq!((buffer.capacity(), buffer.filled(), buffer.missing()), (8192, 0, 0));
        let place = buffer.as_slice().as_ptr();
        assert!(place.addr().is_multiple_of(ALIGN_BYTES));
        buffer.extend_from_slice(b"abc");
        buffer.grow(2).copy_from_slice(b"de");
        buffer.as_mut_slice()[0] = b'A';
        assert_eq!((buffer.as_slice(), buffer.missing()), (&b"Abcde"[..], 4091));
        buffer.grow(8187).fill(9);
        assert_eq!((buffer.remaining(), buffer.missing()), (0, 0));
        buffer.clear();
        buffer.extend_from_slice(b"x");
        buffer.pad();
        assert_eq!((buffer.filled(), buffer.as_slice()[0]), (4096, b'x'));
        assert!(buffer.as_slice()[1..].iter().all(|&byte| byte == 0), "no old bytes");
        assert_eq!(buffer.as_slice().as_ptr(), place);
    }

    #[test]
    #[should_panic(expected = "2 bytes for a buffer with room for 1")]
    fn a_full_buffer_takes_no_more() {
        let mut buffer = Buffer::new(4096);
        buffer.grow(4095);
        buffer.extend_from_slice(b"xy");
    }

    #[test]
    fn words_of_a_ring_lie_as_in_the_ring() {
        let words: Vec<_> = (0..1500_u64).map(AtomicU64::new).collect();
        let mut buffer = Buffer::new(12_000);
        buffer.fill_from_ring(&words);
        let bytes: Vec<u8> = (0..1500_u64).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(buffer.as_slice(), bytes);
    }
}
