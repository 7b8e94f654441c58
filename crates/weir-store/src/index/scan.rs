//! Describes a piece while its frames go by.

use super::{Piece, Set};

/// As many bytes of a frame as [`Scan::add`] looks at.
pub const HEAD_BYTES: usize = 128;

/// Describes a piece, frame by frame.
#[derive(Debug, Default)]
pub struct Scan {
    frames: u32,
    first_ns: u64,
    last_ns: u64,
}

impl Scan {
    /// Adds a frame: `head` is its first [`HEAD_BYTES`] or more, or all of its `caplen` bytes if they are fewer.
    pub fn add(&mut self, ts_ns: u64, _link_type: u16, _head: &[u8], _caplen: u32) {
        self.first_ns = if self.frames == 0 { ts_ns } else { self.first_ns.min(ts_ns) };
        self.last_ns = self.last_ns.max(ts_ns);
        self.frames += 1;
    }

    /// The piece of `bytes` bytes at `at` with all frames since the last one. The next frame begins another.
    pub fn finish(&mut self, at: u64, bytes: u32) -> Piece {
        let Scan { frames, first_ns, last_ns } = std::mem::take(self);
        Piece { at, bytes, frames, first_ns, last_ns, set: Set::everything() }
    }
}
