//! Parses the blocks of a recorded file. The bytes are not trusted.

use weir_frame::pcapng::{
    BYTE_ORDER_MAGIC, IDB_TYPE, Interface, NRB_TYPE, PADDING_TYPE, PB_TYPE, SHB_TYPE, SPB_TYPE,
    SectionInfo, write,
};
use weir_frame::read::FrameReader;
use weir_frame::record::{CAPLEN_MAX, EPB_TYPE, Meta, Outline};

/// The longest block that is accepted, as in libpcap.
pub(crate) const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Bytes of a block's type and length.
pub(crate) const HEAD_BYTES: usize = 8;
/// The shortest block.
const BLOCK_BYTES_MIN: usize = 12;
/// The longest record: a longer one is not a frame of a recorder.
pub(crate) const RECORD_BYTES_MAX: usize = CAPLEN_MAX as usize + 4096;

/// The kind of a block, for readers that search frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An Enhanced Packet Block.
    Frame,
    /// An Interface Description Block.
    Interface,
    /// The header of a section.
    Section,
    /// A frame in a block that Weir does not write.
    ForeignFrame,
    /// A padding block.
    Padding,
    /// Names of addresses.
    Names,
    /// Statistics, and blocks of other types.
    Other,
}

/// Returns type and length at the start of `bytes`, if they can be those of a block.
pub(crate) fn head(bytes: &[u8]) -> Option<(Kind, usize)> {
    let [a, b, c, d, e, f, g, h] = *bytes.first_chunk::<HEAD_BYTES>()?;
    let length = u32::from_le_bytes([e, f, g, h]) as usize;
    if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&length) || !length.is_multiple_of(4) {
        return None;
    }
    let kind = match u32::from_le_bytes([a, b, c, d]) {
        EPB_TYPE if length > RECORD_BYTES_MAX => return None,
        EPB_TYPE => Kind::Frame,
        IDB_TYPE => Kind::Interface,
        SHB_TYPE => Kind::Section,
        PB_TYPE | SPB_TYPE => Kind::ForeignFrame,
        PADDING_TYPE => Kind::Padding,
        NRB_TYPE => Kind::Names,
        // A type of zero is reserved; it marks bytes that were never written.
        0 => return None,
        _ => Kind::Other,
    };
    Some((kind, length))
}

/// Returns whether the lengths at the start and at the end of a block are equal.
pub(crate) fn is_whole(block: &[u8]) -> bool {
    block.len() >= BLOCK_BYTES_MIN && block[4..8] == block[block.len() - 4..]
}

/// Returns the frame in a whole block; `None` if its lengths contradict each other.
#[inline]
pub(crate) fn frame(block: &[u8]) -> Option<(Outline, &[u8])> {
    let outline = Outline::read(block).ok()?;
    Some((outline, &block[28..28 + outline.caplen as usize]))
}

/// Returns whether these are the first bytes of a section in Weir's format: little-endian, major version 1.
pub(crate) fn is_our_section(bytes: &[u8]) -> bool {
    let Some((Kind::Section, _)) = head(bytes) else { return false };
    bytes.get(8..12) == Some(&BYTE_ORDER_MAGIC.to_le_bytes()) && bytes.get(12..14) == Some(&[1, 0])
}

/// Returns the interface that a whole block describes; `None` if it is damaged, or its time unit is not nanoseconds.
pub(crate) fn interface(block: &[u8]) -> Option<Interface> {
    // Let the general pcapng reader parse the block. The time of a frame of this interface reveals the time unit.
    const TICKS: u64 = 1_234_567_890_123_456_789;
    let mut file = Vec::new();
    write::section_header(&mut file, &SectionInfo::default());
    file.extend_from_slice(block);
    write::frame(&mut file, &Meta { ts_ns: TICKS, ..Meta::default() }, &[]);
    let mut reader = FrameReader::open(&file[..]).ok()?;
    let frame = reader.next().ok()??;
    (frame.ts_ns == TICKS).then(|| reader.interfaces()[0].clone())
}
