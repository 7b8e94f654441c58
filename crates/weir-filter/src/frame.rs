//! The view of a frame that a program has.
//!
//! Drivers and the kernel may take the outer VLAN tag off a frame and keep it beside the bytes. Programs
//! come in two kinds. Most, and all that are compiled from text, know nothing of that: they see the frame as
//! it was on the wire, so a tag beside the bytes is put back. Some that libpcap made for a live interface ask
//! for the tag beside the bytes ([`crate::insn::VLAN_TAG_PRESENT`]): they see the frame as the kernel's
//! sockets do, and a tag in the bytes is taken off.

/// Where the outer tag stands: behind the two addresses.
pub const TAG_AT: usize = 12;
/// Length of a tag.
pub const TAG_BYTES: usize = 4;
/// Protocols of tags that the kernel takes off: 802.1Q and 802.1ad.
pub const TAG_PROTOCOLS: [u16; 2] = [0x8100, 0x88a8];

/// A VLAN tag beside the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// 0x8100, 0x88a8 or another EtherType that the NIC was told to take for a tag.
    pub protocol: u16,
    /// Priority, drop eligibility and VLAN id.
    pub tci: u16,
}

/// A frame, as a filter gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The link-layer bytes that are there.
    pub bytes: &'a [u8],
    /// How many there were on the wire, without a tag beside them.
    pub wire_len: u32,
    /// The tag beside the bytes.
    pub tag: Option<Tag>,
}

impl<'a> Frame<'a> {
    /// A whole frame, tag and all in its bytes.
    #[must_use]
    pub fn whole(bytes: &'a [u8]) -> Frame<'a> {
        Frame { bytes, wire_len: bytes.len() as u32, tag: None }
    }
}

/// Where a program finds the byte at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteLocation {
    /// In the frame's bytes, at this offset.
    Bytes(u32),
    /// The tag's byte of this number.
    Tag(u32),
}

/// Where the outer tag is, and where the program wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The bytes are the program's view.
    AsIs,
    /// The same, and the tag beside them, too.
    Beside,
    /// A tag beside the bytes, which the program wants among them.
    Insert,
    /// A tag in the bytes, which the program wants beside them.
    Remove,
}

impl View {
    /// Where the byte is that the program sees at `offset` (at most `OFFSET_MAX`).
    pub(crate) fn locate(self, offset: u32) -> ByteLocation {
        const AT: u32 = TAG_AT as u32;
        const BYTES: u32 = TAG_BYTES as u32;
        match self {
            View::Insert if offset >= AT + BYTES => ByteLocation::Bytes(offset - BYTES),
            View::Insert if offset >= AT => ByteLocation::Tag(offset - AT),
            View::Remove if offset >= AT => ByteLocation::Bytes(offset + BYTES),
            _ => ByteLocation::Bytes(offset),
        }
    }

    /// Length that the program sees, less the bytes that the frame has.
    pub(crate) fn longer(self) -> i32 {
        match self {
            View::AsIs | View::Beside => 0,
            View::Insert => TAG_BYTES as i32,
            View::Remove => -(TAG_BYTES as i32),
        }
    }

    /// Whether the program is told of a tag beside the bytes.
    pub(crate) fn tells_of_tag(self) -> bool {
        matches!(self, View::Beside | View::Remove)
    }
}
