//! A piece of a recorded file, as its index describes it.

use crate::index::Set;

/// A piece of a recorded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the file it begins.
    pub at: u64,
    /// Bytes of it.
    pub bytes: u32,
    /// Frames in it. None: it has headers, statistics or padding.
    pub frames: u32,
    /// The lowest timestamp in it, nanoseconds since the Unix epoch; 0 without frames.
    pub first_ns: u64,
    /// The highest.
    pub last_ns: u64,
    /// Addresses, ports, protocols and tags that occur in its frames, perhaps.
    pub set: Set,
}

impl Piece {
    /// Headers or statistics: a reader of the file reads them.
    #[must_use]
    pub fn headers(at: u64, bytes: u32) -> Piece {
        Piece { at, bytes, frames: 0, first_ns: 0, last_ns: 0, set: Set::everything() }
    }

    /// Nothing: the data is torn, and is skipped.
    #[must_use]
    pub fn nothing(at: u64, bytes: u32) -> Piece {
        Piece { at, bytes, frames: 0, first_ns: 0, last_ns: 0, set: Set::default() }
    }
}
