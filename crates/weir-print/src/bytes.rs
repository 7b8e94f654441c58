//! Bytes of a packet that may be cut: those that were kept, and how many there were on the wire.

/// The kept bytes of a header and what follows it, with the length that the packet says it has.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    kept: &'a [u8],
    len: usize,
}

impl<'a> Bytes<'a> {
    /// `len` is the length on the wire; kept bytes beyond it are left out.
    pub fn new(kept: &'a [u8], len: usize) -> Bytes<'a> {
        Bytes { kept: &kept[..kept.len().min(len)], len }
    }

    /// The length on the wire.
    pub fn len(self) -> usize {
        self.len
    }

    /// The bytes that were kept.
    pub fn kept(self) -> &'a [u8] {
        self.kept
    }

    /// Whether all of it was kept.
    pub fn is_whole(self) -> bool {
        self.kept.len() == self.len
    }

    /// The first `N` bytes, if they were kept.
    pub fn head<const N: usize>(self) -> Option<&'a [u8; N]> {
        self.kept.first_chunk()
    }

    /// The byte at `at`, if it was kept.
    pub fn u8(self, at: usize) -> Option<u8> {
        self.kept.get(at).copied()
    }

    /// Two bytes in network order.
    pub fn be16(self, at: usize) -> Option<u16> {
        self.kept.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Four bytes in network order.
    pub fn be32(self, at: usize) -> Option<u32> {
        self.kept.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// The bytes after the first `count`; empty if there are fewer.
    pub fn after(self, count: usize) -> Bytes<'a> {
        Bytes { kept: self.kept.get(count..).unwrap_or(&[]), len: self.len.saturating_sub(count) }
    }

    /// At most the first `len` bytes.
    pub fn up_to(self, len: usize) -> Bytes<'a> {
        Bytes::new(self.kept, self.len.min(len))
    }
}
