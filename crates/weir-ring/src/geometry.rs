//! Offsets of all words of a ring. `bpf/ring.h` has the same offsets in C; tests compare the two.
//!
//! ```text
//! block 0   0x00000  pcapng header area: SHB, IDBs, one local-use block that fills the area
//!           0x10000  local-use block that holds the rest of block 0:
//!           0x10008    magic, version, geometry, identity       (fixed after creation)
//!           0x10100    the writer's words                       (128-byte lines of their own)
//!           0x11000    index: one 64-byte entry per data block
//! block 1.. 0x100000 data: Enhanced Packet Blocks end to end, a local-use padding block at the end
//! ```

use weir_frame::record::CAPLEN_MAX;

use crate::error::RingError;

/// Bytes of a block. A block is padded, written to disk with direct I/O, and overwritten as a whole.
pub const BLOCK_BYTES: u32 = 1 << 20;
pub use crate::limits::{DATA_BLOCKS_MAX, DATA_BLOCKS_MIN};
/// Bytes of the pcapng header area at the start of block 0.
pub const HEADER_AREA_BYTES: u32 = 0x10000;
/// Index of the first of the ring's own words.
pub(crate) const META_WORD: usize = HEADER_AREA_BYTES as usize / 8;
/// Low half: interfaces described. High half: bytes of the section header and of these descriptions.
pub(crate) const INTERFACES_WORD: usize = META_WORD + 4;
/// Type of the padding block that ends a closed data block: local use (top bit set), so that every
/// pcapng reader skips it. Source: draft-ietf-opsawg-pcapng, section 10.1.
pub const PADDING_TYPE: u32 = 0x8000_5745;
/// Type of the local-use block in block 0 that holds the ring's own words.
pub const META_TYPE: u32 = 0x8000_5746;
/// Bytes of the smallest block: type, length, length again.
pub const PADDING_MIN_BYTES: u32 = 12;

const META_AT: u32 = HEADER_AREA_BYTES;
const WRITER_AT: u32 = META_AT + 0x100;
const INDEX_AT: u32 = META_AT + 0x1000;
const ENTRY_WORDS: usize = 8;

/// The longest frame of each size class, and the free space that its record needs in a block: 28 bytes of header, 20 of
/// options and 4 of length, and 12 for the padding block that must still fit behind the record.
///
/// A record may begin only where its size class fits. The BPF verifier needs the classes: it must see constant bounds
/// of `offset + length`. All writers follow the same rule, so that the same frames make the same bytes. See
/// `docs/decisions/0002-size-classes.md`.
///
/// The classes are for short frames, jumbo frames, super-frames of 64 KiB, those of BIG TCP with its usual limit (192
/// KiB), and the longest of BIG TCP (512 KiB), each with its link-layer header and tags.
pub const CLASSES: [Class; 5] =
    [class(2048), class(10 * 1024), class(68 * 1024), class(196 * 1024), class(CAPLEN_MAX)];

/// One size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Longest frame in bytes.
    pub caplen_max: u32,
    /// Bytes that must be free in the block before a record of this class begins.
    pub room: u32,
}

const fn class(caplen_max: u32) -> Class {
    Class { caplen_max, room: caplen_max + 52 + PADDING_MIN_BYTES }
}

const _: () = {
    use weir_frame::record::{Flags, Meta, record_bytes};
    // The longest record of each class fits the space of its class, with a padding block behind it.
    let meta = Meta {
        interface_id: 0,
        ts_ns: 0,
        wire_len: 0,
        flags: Some(Flags::INBOUND),
        queue: Some(0),
    };
    let mut class = 0;
    while class < CLASSES.len() {
        let Class { caplen_max, room } = CLASSES[class];
        assert!(record_bytes(&meta, caplen_max) + PADDING_MIN_BYTES == room);
        assert!(class == 0 || CLASSES[class - 1].caplen_max < caplen_max);
        class += 1;
    }
    assert!(CLASSES[CLASSES.len() - 1].room <= BLOCK_BYTES);
};

const _: () = {
    // The index ends before the closing length of block 0. The writer's words do not share a 128-byte line with the
    // index.
    assert!(INDEX_AT as u64 + DATA_BLOCKS_MAX * 64 <= BLOCK_BYTES as u64 - 8);
    assert!(ENTRY_WORDS * 8 == 64 && (EntryWord::LastNs as usize) < ENTRY_WORDS);
    assert!(WRITER_AT.is_multiple_of(128) && INDEX_AT.is_multiple_of(128));
    assert!(WriterWord::Offset as usize * 8 == 128);
    assert!(WRITER_AT as usize + WriterWord::DropsUnreadable as usize * 8 < INDEX_AT as usize);
};

#[cfg(not(loom))]
const _: () = assert!(size_of::<crate::AtomicU64>() == 8 && align_of::<crate::AtomicU64>() == 8);

/// Words of block 0, outside the index, to which only the writer stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum WriterWord {
    /// Blocks opened since the ring began. The number of the newest block is one less.
    Opened = 0,
    /// Frames published since the ring began: the ordinal of the next frame.
    Ordinal = 1,
    /// Kept bytes of these frames.
    KeptBytes = 2,
    /// Bytes of these frames on the wire.
    WireBytes = 3,
    /// Offload super-frames among these frames.
    SuperFrames = 4,
    /// Not zero: the writer has closed the ring, and writes no more frames.
    Closed = 5,
    /// Used by BPF writers only: the offset of the next free byte of the open block.
    Offset = 16,
    /// Frames dropped because their bytes could not be read.
    DropsUnreadable = 17,
}

/// The words of an index entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum EntryWord {
    /// `2b + 2`: the entry is that of block number `b`. Odd: the writer is replacing its block by a newer one.
    Seq = 0,
    /// Bytes of the block that may be read; the block size once the block is closed.
    Committed = 1,
    /// Frames in the committed bytes.
    Frames = 2,
    /// Ordinal of the block's first frame.
    FirstOrdinal = 3,
    /// Timestamp of the first frame.
    FirstNs = 4,
    /// Timestamp of the last committed frame.
    LastNs = 5,
}

/// The offsets of everything in a ring. They are the same in all real rings, but fields here, so that models can run
/// the same code over a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Data blocks, a power of two.
    pub data_blocks: u64,
    /// Index of the word that counts the interfaces. `None` in a model, whose ring describes no interface and accepts
    /// every interface id.
    pub(crate) interfaces_at: Option<usize>,
    pub(crate) writer_at: usize,
    pub(crate) index_at: usize,
    pub(crate) data_at: usize,
    pub(crate) classes: [Class; CLASSES.len()],
}

impl Geometry {
    /// Returns the geometry of a ring with `data_blocks` blocks of 1 MiB.
    ///
    /// # Errors
    /// [`RingError::BadBlockCount`] unless `data_blocks` is a power of two within the limits.
    pub fn new(data_blocks: u64) -> Result<Self, RingError> {
        let (min, max) = (DATA_BLOCKS_MIN, DATA_BLOCKS_MAX);
        if !data_blocks.is_power_of_two() || !(min..=max).contains(&data_blocks) {
            return Err(RingError::BadBlockCount { blocks: data_blocks, min, max });
        }
        Ok(Geometry {
            block_bytes: BLOCK_BYTES,
            data_blocks,
            interfaces_at: Some(INTERFACES_WORD),
            writer_at: WRITER_AT as usize / 8,
            index_at: INDEX_AT as usize / 8,
            data_at: BLOCK_BYTES as usize / 8,
            classes: CLASSES,
        })
    }

    /// Returns the geometry of a tiny ring without a header, for models: each block holds one or two small records.
    #[doc(hidden)]
    #[must_use]
    pub fn model(block_bytes: u32, data_blocks: u64, room: u32) -> Self {
        assert!(block_bytes.is_multiple_of(8) && data_blocks.is_power_of_two());
        let index_at = 8;
        Geometry {
            block_bytes,
            data_blocks,
            interfaces_at: None,
            writer_at: 0,
            index_at,
            data_at: index_at + ENTRY_WORDS * data_blocks as usize,
            classes: [Class { caplen_max: 2048, room }; CLASSES.len()],
        }
    }

    /// Returns the number of words of the whole ring.
    #[must_use]
    pub fn total_words(&self) -> usize {
        self.data_at + self.block_words() * self.data_blocks as usize
    }

    /// Returns the number of bytes of the whole ring.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total_words() as u64 * 8
    }

    /// Returns the free bytes that a block must have for a record with this caplen. With fewer, the writer closes the
    /// block.
    #[inline]
    #[must_use]
    pub fn room_for(&self, caplen: u32) -> u32 {
        // Most frames are short: they need one comparison.
        let [classes @ .., longest] = &self.classes;
        let class = classes.iter().find(|class| caplen <= class.caplen_max);
        class.unwrap_or(longest).room
    }

    /// Returns the length of the longest record that a reader accepts.
    pub(crate) fn record_bytes_max(&self) -> u32 {
        self.classes[CLASSES.len() - 1].room.min(self.block_bytes)
    }

    pub(crate) fn block_words(&self) -> usize {
        self.block_bytes as usize / 8
    }

    /// Returns the index of one of the writer's words.
    #[must_use]
    pub fn writer_word(&self, word: WriterWord) -> usize {
        self.writer_at + word as usize
    }

    /// Returns the index of a word of the index entry for block number `block`. The entry is reused for every later
    /// block in the same place.
    #[must_use]
    pub fn entry_word(&self, block: u64, word: EntryWord) -> usize {
        self.index_at + ENTRY_WORDS * self.slot(block) + word as usize
    }

    /// Returns the index of the first word of block number `block`.
    #[must_use]
    pub fn block_word(&self, block: u64) -> usize {
        self.data_at + self.block_words() * self.slot(block)
    }

    fn slot(&self, block: u64) -> usize {
        (block & (self.data_blocks - 1)) as usize
    }
}

/// Returns the `seq` word of an index entry that holds block number `block`.
#[inline]
pub(crate) fn seq_of(block: u64) -> u64 {
    block.wrapping_mul(2).wrapping_add(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_within_limits_are_rings() {
        for blocks in [0, 1, 2, 3, 5, 6, 12, 8193, 16384, u64::MAX] {
            assert!(matches!(Geometry::new(blocks), Err(RingError::BadBlockCount { .. })));
        }
        assert_eq!(Geometry::new(4).unwrap().total_bytes(), 5 << 20);
    }

    #[test]
    fn every_record_of_a_class_leaves_room_for_the_padding_block() {
        use weir_frame::record::{Flags, Meta, record_bytes};
        let meta = Meta { flags: Some(Flags(1)), queue: Some(1), ..Meta::default() };
        let geometry = Geometry::new(4).unwrap();
        for class in CLASSES {
            let longest = record_bytes(&meta, class.caplen_max);
            assert!(longest + PADDING_MIN_BYTES <= geometry.room_for(class.caplen_max));
        }
    }
}
