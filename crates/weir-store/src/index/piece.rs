//! A piece of a recorded file, as its index describes it.

use crate::index::Set;

/// A piece of a recorded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of the piece in the file, before compression.
    pub at: u64,
    /// Length of the piece, before compression.
    pub bytes: u32,
    /// Number of frames. A piece with 0 frames has headers, statistics or padding.
    pub frames: u32,
    /// The lowest timestamp in the piece, in nanoseconds since the Unix epoch; 0 without frames.
    pub first_ns: u64,
    /// The highest timestamp in the piece, in nanoseconds since the Unix epoch; 0 without frames.
    pub last_ns: u64,
    /// Addresses, ports, protocols and tags that may occur in the frames of the piece.
    pub set: Set,
}

impl Piece {
    /// Returns a piece of headers or statistics, which readers must read.
    #[must_use]
    pub fn headers(at: u64, bytes: u32) -> Piece {
        Piece { at, bytes, frames: 0, first_ns: 0, last_ns: 0, set: Set::everything() }
    }

    /// Returns a piece of padding, which replaces incomplete data. Readers skip it.
    #[must_use]
    pub fn nothing(at: u64, bytes: u32) -> Piece {
        Piece { at, bytes, frames: 0, first_ns: 0, last_ns: 0, set: Set::default() }
    }
}
