//! Bytes of a packet that may be cut off: the captured bytes, and the length on the wire.

/// The captured bytes of a header and its payload, with the length that they had on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    kept: &'a [u8],
    len: usize,
}

impl<'a> Bytes<'a> {
    /// Creates the value. `len` is the length on the wire; captured bytes beyond it are left out.
    pub fn new(kept: &'a [u8], len: usize) -> Bytes<'a> {
        Bytes { kept: &kept[..kept.len().min(len)], len }
    }

    /// Returns the length on the wire.
    pub fn len(self) -> usize {
        self.len
    }

    /// Returns the captured bytes.
    pub fn kept(self) -> &'a [u8] {
        self.kept
    }

    /// Returns whether all bytes were captured.
    pub fn is_whole(self) -> bool {
        self.kept.len() == self.len
    }

    /// Returns the first `N` bytes, if they were captured.
    pub fn head<const N: usize>(self) -> Option<&'a [u8; N]> {
        self.kept.first_chunk()
    }

    /// Returns the byte at offset `at`, if it was captured.
    pub fn u8(self, at: usize) -> Option<u8> {
        self.kept.get(at).copied()
    }

    /// Returns two bytes at offset `at`, in network order, if they were captured.
    pub fn be16(self, at: usize) -> Option<u16> {
        self.kept.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Returns four bytes at offset `at`, in network order, if they were captured.
    pub fn be32(self, at: usize) -> Option<u32> {
        self.kept.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// Returns the bytes after the first `count`; empty if there are fewer.
    pub fn after(self, count: usize) -> Bytes<'a> {
        Bytes { kept: self.kept.get(count..).unwrap_or(&[]), len: self.len.saturating_sub(count) }
    }

    /// Returns at most the first `len` bytes.
    pub fn up_to(self, len: usize) -> Bytes<'a> {
        Bytes::new(self.kept, self.len.min(len))
    }
}
