//! The structs `weir_frame` and `weir_block` of the header.

use weir_frame::record::Record;

/// `WEIR_NO_QUEUE`.
const NO_QUEUE: u32 = u32::MAX;

/// `struct weir_frame`.
#[repr(C)]
pub struct Frame {
    data: *const u8,
    length: u32,
    wire_length: u32,
    time_ns: u64,
    interface: u32,
    flags: u32,
    queue: u32,
}

impl Frame {
    pub const NONE: Frame = Frame {
        data: std::ptr::null(),
        length: 0,
        wire_length: 0,
        time_ns: 0,
        interface: 0,
        flags: 0,
        queue: NO_QUEUE,
    };
}

impl From<Record<'_>> for Frame {
    #[inline]
    fn from(record: Record<'_>) -> Frame {
        let meta = record.meta;
        Frame {
            data: record.frame.as_ptr(),
            length: record.frame.len() as u32,
            wire_length: meta.wire_len,
            time_ns: meta.ts_ns,
            interface: meta.interface_id,
            flags: meta.flags.map_or(0, |flags| flags.0),
            queue: meta.queue.unwrap_or(NO_QUEUE),
        }
    }
}

/// `struct weir_block`.
#[repr(C)]
pub struct Block {
    pub data: *const u8,
    pub bytes: usize,
    pub frames: u64,
    pub head: *const u8,
    pub head_bytes: usize,
}

impl Block {
    pub const NONE: Block = Block {
        data: std::ptr::null(),
        bytes: 0,
        frames: 0,
        head: std::ptr::null(),
        head_bytes: 0,
    };
}
