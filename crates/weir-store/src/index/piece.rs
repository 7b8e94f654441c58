//! A piece of a recorded file, as its index describes it.

use crate::index::Set;

/// A piece of a recorded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its offset in the file, before compression.
    pub at: u64,
    /// Its length, before compression.
    pub bytes: u32,
    /// Number of frames. A piece with 0 frames has headers, statistics or padding.
    pub frames: u32,
    /// The lowest timestamp in it, nanoseconds since the Unix epoch; 0 without frames.
    pub first_ns: u64,
    /// The highest timestamp in it, nanoseconds since the Unix epoch; 0 without frames.
    pub last_ns: u64,
    /// Addresses, ports, protocols and tags that may occur in its frames.
    pub set: Set,
}

impl Piece {
    /// A piece of headers or statistics, which readers have to read.
    #[must_use]
    pub fn headers(at: u64, bytes: u32) -> Piece {
        Piece { at, bytes, frames: 0, first_ns: 0, last_ns: 0, set: Set::everything() }
    }

    /// A piece of padding, which hides torn data. Readers skip it.
    #[must_use]
    pub fn nothing(at: u64, bytes: u32) -> Piece {
        Piece { at, bytes, frames: 0, first_ns: 0, last_ns: 0, set: Set::default() }
    }
}
