//! The view of a frame that a program has.
//!
//! Drivers and the kernel may take the outer VLAN tag off a frame and keep it beside the bytes.
//! There are two kinds of programs. Most, and all that are compiled from text, ignore this: they
//! see the frame as it was on the wire, so a tag beside the bytes is put back. Some that libpcap
//! made for a live interface read the tag beside the bytes ([`crate::insn::VLAN_TAG_PRESENT`]):
//! they see the frame as the kernel's sockets do, so a tag in the bytes is taken off.

/// Offset of the outer tag: after the two addresses.
pub const TAG_AT: usize = 12;
/// Length of a tag.
pub const TAG_BYTES: usize = 4;
/// Protocols of tags that the kernel takes off: 802.1Q and 802.1ad.
pub const TAG_PROTOCOLS: [u16; 2] = [0x8100, 0x88a8];

/// A VLAN tag beside the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// 0x8100, 0x88a8 or another EtherType that the NIC is configured to treat as a tag.
    pub protocol: u16,
    /// Priority, drop eligibility and VLAN id.
    pub tci: u16,
}

/// A frame as a filter receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The captured link-layer bytes.
    pub bytes: &'a [u8],
    /// Length on the wire, without a tag beside the bytes.
    pub wire_len: u32,
    /// The tag beside the bytes.
    pub tag: Option<Tag>,
}

impl<'a> Frame<'a> {
    /// Describes a whole frame. A tag is in its bytes.
    #[must_use]
    pub fn whole(bytes: &'a [u8]) -> Frame<'a> {
        Frame { bytes, wire_len: bytes.len() as u32, tag: None }
    }
}

/// The place of a byte that a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteLocation {
    /// In the frame's bytes, at this offset.
    Bytes(u32),
    /// In the tag, the byte of this number.
    Tag(u32),
}

/// The place of the outer tag, and the place where the program expects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The bytes are the program's view.
    AsIs,
    /// The tag is beside the bytes, and the program expects it there.
    Beside,
    /// The tag is beside the bytes, and the program expects it in them.
    Insert,
    /// The tag is in the bytes, and the program expects it beside them.
    Remove,
}

impl View {
    /// Returns the place of the byte that the program sees at `offset` (at most `OFFSET_MAX`).
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

    /// Returns the length that the program sees, minus the length of the frame's bytes.
    pub(crate) fn longer(self) -> i32 {
        match self {
            View::AsIs | View::Beside => 0,
            View::Insert => TAG_BYTES as i32,
            View::Remove => -(TAG_BYTES as i32),
        }
    }

    /// Returns whether the program can see a tag beside the bytes.
    pub(crate) fn tells_of_tag(self) -> bool {
        matches!(self, View::Beside | View::Remove)
    }
}
