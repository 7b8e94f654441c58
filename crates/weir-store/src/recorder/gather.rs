//! Frames of blocks that are not whole, collected: of quiet links, and at the beginning and end of the part that
//! is read.

use weir_disk::Buffer;
use weir_disk::buffer::ALIGN_BYTES;
use weir_frame::pcapng::{BLOCK_MIN_BYTES, write::padding_block};

/// Once so many bytes are collected they go out.
const FULL_BYTES: usize = 1 << 20;
/// Room behind that for what one poll brings, and for padding.
const ROOM_BYTES: usize = 1 << 20;

/// Whole pcapng blocks on their way to a file.
pub struct Gather {
    buffer: Option<Buffer>,
    pub frames: u64,
    pub wire_bytes: u64,
    pub highest_interface_id: u32,
}

impl Gather {
    pub fn new() -> Gather {
        Gather { buffer: None, frames: 0, wire_bytes: 0, highest_interface_id: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    pub fn is_full(&self) -> bool {
        self.buffer.as_ref().is_some_and(|buffer| buffer.filled() >= FULL_BYTES)
    }

    /// Adds records.
    pub fn add(&mut self, blocks: &[u8], frames: u64, wire_bytes: u64, highest_interface_id: u32) {
        let buffer = self.buffer.get_or_insert_with(|| Buffer::new(FULL_BYTES + ROOM_BYTES));
        buffer.extend_from_slice(blocks);
        self.frames += frames;
        self.wire_bytes += wire_bytes;
        self.highest_interface_id = self.highest_interface_id.max(highest_interface_id);
    }

    /// The collected data, padded for the disk.
    pub fn take(&mut self) -> Option<Buffer> {
        let mut buffer = self.buffer.take()?;
        pad(&mut buffer);
        (self.frames, self.wire_bytes, self.highest_interface_id) = (0, 0, 0);
        Some(buffer)
    }
}

/// These blocks as a piece of a file of their own.
pub fn piece(blocks: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(blocks.len() + 2 * ALIGN_BYTES);
    buffer.extend_from_slice(blocks);
    pad(&mut buffer);
    buffer
}

/// Ends a piece with a block that others pass over, up to where a direct write may end: two pages at most.
pub fn pad(buffer: &mut Buffer) {
    let mut missing = buffer.missing();
    if missing == 0 {
        return;
    }
    if missing < BLOCK_MIN_BYTES as usize {
        missing += ALIGN_BYTES;
    }
    let mut padding = Vec::with_capacity(missing);
    padding_block(&mut padding, missing as u32);
    buffer.extend_from_slice(&padding);
}

/// The first and the last page of a padding block of `bytes` bytes: written over the ends of a piece, they hide what
/// lies between.
pub fn cover(bytes: usize) -> [Buffer; 2] {
    let length = (bytes as u32).to_le_bytes();
    let mut first = Buffer::new(ALIGN_BYTES);
    first.extend_from_slice(&weir_frame::pcapng::PADDING_TYPE.to_le_bytes());
    first.extend_from_slice(&length);
    first.pad();
    let mut last = Buffer::new(ALIGN_BYTES);
    last.grow(ALIGN_BYTES - 4).fill(0);
    last.extend_from_slice(&length);
    [first, last]
}
