//! The metadata words that `bpf/af_xdp.bpf.c` writes in front of a frame: `struct weir_words`.

use crate::kernel::vlan::Tag;

/// Bytes of `struct weir_words` { u64 ts_ns; u32 tag; u32 kind }.
pub(super) const WORDS_BYTES: u32 = 16;
/// Offset of `kind` in `struct weir_words`.
pub(super) const KIND_AT: usize = 12;
/// `WEIR_WORDS`: the value of `kind` if there are words; and the bit that is set in it if there is also a tag.
const KIND: u32 = 0x5765_6970;
const KIND_TAG: u32 = 1;

/// Data of a frame that only the program at the hook knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) ts_ns: u64,
    pub(super) tag: Option<Tag>,
}

impl Words {
    /// Returns the words in front of a frame, if there are any. A frame with too little headroom has none.
    #[inline]
    pub(super) fn parse(bytes: &[u8; WORDS_BYTES as usize]) -> Option<Words> {
        let [t0, t1, t2, t3, t4, t5, t6, t7, p0, p1, c0, c1, kind @ ..] = *bytes;
        let kind = u32::from_ne_bytes(kind);
        if kind & !KIND_TAG != KIND {
            return None;
        }
        let tag = (kind & KIND_TAG != 0)
            .then(|| Tag { tpid: u16::from_be_bytes([p0, p1]), tci: u16::from_be_bytes([c0, c1]) });
        Some(Words { ts_ns: u64::from_ne_bytes([t0, t1, t2, t3, t4, t5, t6, t7]), tag })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_stamp_and_perhaps_a_tag_or_not_there() {
        let mut bytes = [0; 16];
        assert_eq!(Words::parse(&bytes), None);
        bytes[..8].copy_from_slice(&77u64.to_ne_bytes());
        bytes[12..].copy_from_slice(&KIND.to_ne_bytes());
        assert_eq!(Words::parse(&bytes), Some(Words { ts_ns: 77, tag: None }));
        bytes[8..12].copy_from_slice(&[0x88, 0xa8, 0x20, 0x07]);
        bytes[12..].copy_from_slice(&(KIND | KIND_TAG).to_ne_bytes());
        let tag = Words::parse(&bytes).and_then(|words| words.tag).unwrap();
        assert_eq!((tag.tpid, tag.tci), (0x88a8, 0x2007));
    }
}
