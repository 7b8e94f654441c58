//! Collects frames of incomplete blocks: those of quiet links, and those at the beginning and the end of the part of a
//! ring that is read.

use weir_disk::Buffer;
use weir_disk::buffer::ALIGN_BYTES;
use weir_frame::pcapng::{BLOCK_MIN_BYTES, write::padding_block};

/// The collected data is written once it has this many bytes.
const FULL_BYTES: usize = 1 << 20;
/// Additional space for the frames of one poll and for padding.
const ROOM_BYTES: usize = 1 << 20;

/// Collected pcapng blocks.
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

    /// Adds pcapng blocks with frames.
    pub fn add(&mut self, blocks: &[u8], frames: u64, wire_bytes: u64, highest_interface_id: u32) {
        let buffer = self.buffer.get_or_insert_with(|| Buffer::new(FULL_BYTES + ROOM_BYTES));
        buffer.extend_from_slice(blocks);
        self.frames += frames;
        self.wire_bytes += wire_bytes;
        self.highest_interface_id = self.highest_interface_id.max(highest_interface_id);
    }

    /// Returns the collected data, padded for the disk.
    pub fn take(&mut self) -> Option<Buffer> {
        let mut buffer = self.buffer.take()?;
        pad(&mut buffer);
        (self.frames, self.wire_bytes, self.highest_interface_id) = (0, 0, 0);
        Some(buffer)
    }
}

/// Returns a piece of a file that consists of these blocks and padding.
pub fn piece(blocks: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(blocks.len() + 2 * ALIGN_BYTES);
    buffer.extend_from_slice(blocks);
    pad(&mut buffer);
    buffer
}

/// Appends a padding block, which readers skip, up to the alignment of direct writes. It is shorter than two pages.
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

/// Returns the first and the last page of a padding block of `bytes` bytes. Written over both ends of a piece, they
/// turn the whole piece into padding.
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
