//! Data that was read from a ring and is not settled.

use weir_disk::{Buffer, Bytes};
use weir_ring::Whole;

use crate::index::Piece;

/// The number of no file.
pub const NO_FILE: u64 = u64::MAX;

/// Entries that were read and are not settled, in the order in which they were read.
pub struct Entry {
    pub what: What,
    /// The file that it goes to, and where in it.
    pub file: u64,
    pub at: u64,
    pub bytes: usize,
    pub state: State,
    /// The first page of a block that is written in place: written last, once the block is known to be whole. Until
    /// then there are zeros, at which every reader of the file stops.
    pub first_page: Option<Buffer>,
    /// It was tried before, on a volume that failed.
    pub is_again: bool,
    /// The number that the volume returned for the write request.
    pub begun: u64,
    /// In a compressed file: its place and length before compression, and the length of the interface
    /// descriptions in front of it.
    pub plain_at: u64,
    pub plain_bytes: usize,
    pub headers_bytes: u32,
}

impl Entry {
    /// One that is in no file.
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
    /// Frames; of a block of the ring, where they were not copied.
    Frames { frames: u64, wire_bytes: u64, block: Option<Whole>, highest: u32, piece: Piece },
    /// Headers, statistics.
    Blocks,
    /// Padding over torn data.
    Cover,
    /// Frames that were not read.
    Gap(Gap, u64),
}

/// Why frames were not read.
#[derive(Clone, Copy)]
pub enum Gap {
    /// They were lapped.
    Lapped,
    /// No trigger came.
    Untriggered,
    /// They were lapped while no trigger had come.
    LappedUntriggered,
}

pub enum State {
    /// It is being compressed.
    Packing,
    /// It is compressed, and written once all before it is.
    Packed {
        buffer: Buffer,
        plain_bytes: usize,
    },
    Pending,
    Done,
    /// The writer had overtaken it by the time it was written.
    Torn,
    /// The file system is full: to be written again once a file is deleted.
    Full(Bytes),
    /// Its bytes, if it came back.
    Failed(Option<Bytes>),
}
