//! Sizes and counts.

/// Bytes of the header of the region, and the unit of places in it: a block of a ring.
pub const UNIT_BYTES: u64 = 1 << 20;
/// Least bytes of a region: its header, and the smallest ring.
pub const REGION_BYTES_MIN: u64 = 8 << 20;
/// Most bytes of a region. A BAR of a guest's 64-bit window; QEMU's own limit is the guest's address space.
pub const REGION_BYTES_MAX: u64 = 64 << 30;
/// MiB of a region, if nothing else is asked for: the rings of three feeds of the usual size.
pub const REGION_MIB_DEFAULT: u64 = 256;
/// Bytes of the words.
pub const WORDS_BYTES: u64 = 4096;
/// Bytes of the header, and of each line after it.
pub const LINE_BYTES: u64 = 64;
/// Feeds of a guest: lines of the words.
pub const SLOTS_MAX: u32 = 63;
