//! Data that was read from a ring and is not settled: it is not yet known whether its frames are kept, and they are
//! not counted yet.

use weir_disk::{Buffer, Bytes};
use weir_ring::Whole;

use crate::index::Piece;

/// The file number of an entry without a file.
pub const NO_FILE: u64 = u64::MAX;

/// Data that was read and is not settled. Entries are settled in the order in which they were read.
pub struct Entry {
    pub what: What,
    /// The file to which the entry is written, and the offset in the file.
    pub file: u64,
    pub at: u64,
    pub bytes: usize,
    pub state: State,
    /// The first page of blocks that are written from ring memory. It is written last, once they are known to be
    /// whole. Until then the file has zeros in its place, at which every reader stops.
    pub first_page: Option<Buffer>,
    /// Number of entries after this one that are written by the same request. They have no writes of their own.
    pub followers: usize,
    /// Whether the entry is being written from ring memory.
    pub reads_ring: bool,
    /// Number of pending writes that replace the entry by padding. The entries after it are not settled before these
    /// writes have ended: if one of them fails, the file ends before the entry.
    pub covers: usize,
    /// For a copied block: the block of the ring, to copy it again if a failed write cuts off the entry.
    pub copied: Option<Whole>,
    /// Whether an earlier write of the entry, on another volume, has failed.
    pub is_again: bool,
    /// The number that the volume returned for the write request.
    pub begun: u64,
    /// In a compressed file: offset and length of the entry before compression, and the uncompressed length of the
    /// headers before it.
    pub plain_at: u64,
    pub plain_bytes: usize,
    pub headers_bytes: u32,
    /// The length of these headers after compression.
    pub headers_packed: usize,
}

impl Entry {
    /// Creates an entry without a file.
    pub fn nowhere(what: What) -> Entry {
        Entry {
            what,
            file: NO_FILE,
            at: 0,
            bytes: 0,
            state: State::Done,
            first_page: None,
            copied: None,
            followers: 0,
            covers: 0,
            reads_ring: false,
            is_again: false,
            begun: 0,
            plain_at: 0,
            plain_bytes: 0,
            headers_bytes: 0,
            headers_packed: 0,
        }
    }

    /// Returns the number of frames that were read.
    pub fn frames(&self) -> u64 {
        match self.what {
            What::Frames { frames, .. } => frames,
            _ => 0,
        }
    }
}

pub enum What {
    /// Frames. `block` is the block of the ring that contains them, if they were not copied.
    Frames { frames: u64, wire_bytes: u64, block: Option<Whole>, highest: u32, piece: Piece },
    /// Headers or statistics.
    Blocks,
    /// Padding that replaces torn data.
    Cover {
        /// Whether the padding replaces a page that was written. Otherwise, it is the piece's first page, which was
        /// not written.
        is_written: bool,
        /// Number of the torn entry.
        of: u64,
    },
    /// Frames that were not read.
    Gap(Gap, u64),
}

/// The reason why frames were not read.
#[derive(Clone, Copy)]
pub enum Gap {
    /// The frames were lapped.
    Lapped,
    /// No trigger selected them.
    Untriggered,
    /// They were lapped, and no trigger had selected them.
    LappedUntriggered,
}

pub enum State {
    /// The entry is being compressed.
    Packing,
    /// The entry is compressed, and waits until the entries before it are compressed.
    Packed {
        buffer: Buffer,
        plain_bytes: usize,
    },
    Pending,
    Done,
    /// The ring's writer overwrote the data before its write had completed.
    Torn,
    /// The file system is full. The data is written again once a file is deleted.
    Full(Bytes),
    /// The write failed. Contains the bytes, if the disk returned them.
    Failed(Option<Bytes>),
}
