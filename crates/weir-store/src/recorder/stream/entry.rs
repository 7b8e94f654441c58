//! Data that was read from a ring and is not settled: the fate of its frames is not known and counted yet.

use weir_disk::{Buffer, Bytes};
use weir_ring::Whole;

use crate::index::Piece;

/// The file number of an entry without a file.
pub const NO_FILE: u64 = u64::MAX;

/// Data that was read and is not settled. Entries are settled in the order in which they were read.
pub struct Entry {
    pub what: What,
    /// The file that it is written to, and its offset there.
    pub file: u64,
    pub at: u64,
    pub bytes: usize,
    pub state: State,
    /// The first page of a block that is written from ring memory. It is written last, once the block is known to be
    /// whole. Until then the file has zeros there, at which every reader stops.
    pub first_page: Option<Buffer>,
    /// Whether an earlier write of it failed, on another volume.
    pub is_again: bool,
    /// The number that the volume returned for the write request.
    pub begun: u64,
    /// In a compressed file: its offset and length before compression, and the uncompressed length of the headers
    /// before it.
    pub plain_at: u64,
    pub plain_bytes: usize,
    pub headers_bytes: u32,
}

impl Entry {
    /// An entry without a file.
    pub fn nowhere(what: What) -> Entry {
        Entry {
            what,
            file: NO_FILE,
            at: 0,
            bytes: 0,
            state: State::Done,
            first_page: None,
            is_again: false,
            begun: 0,
            plain_at: 0,
            plain_bytes: 0,
            headers_bytes: 0,
        }
    }
}

pub enum What {
    /// Frames. `block` is the ring's block that holds them, if they were not copied.
    Frames { frames: u64, wire_bytes: u64, block: Option<Whole>, highest: u32, piece: Piece },
    /// Headers or statistics.
    Blocks,
    /// Padding that hides torn data.
    Cover {
        /// It replaces a page that was written; otherwise it is the piece's first page, which was not.
        is_written: bool,
    },
    /// Frames that were not read.
    Gap(Gap, u64),
}

/// Why frames were not read.
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
    /// It is compressed, and waits until the entries before it are compressed.
    Packed {
        buffer: Buffer,
        plain_bytes: usize,
    },
    Pending,
    Done,
    /// The ring's writer overwrote it before its write had completed.
    Torn,
    /// The file system is full. It is written again once a file is deleted.
    Full(Bytes),
    /// Its write failed. The bytes, if the disk returned them.
    Failed(Option<Bytes>),
}
