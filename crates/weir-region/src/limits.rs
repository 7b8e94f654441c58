//! Sizes and limits of the shared memory.

/// Bytes of the region's header, and unit of places in the region: the size of a ring's block.
pub const UNIT_BYTES: u64 = 1 << 20;
/// Fewest bytes of a region: its header, and the smallest ring.
pub const REGION_BYTES_MIN: u64 = 8 << 20;
/// Most bytes of a region. Its BAR is in the guest's 64-bit window. QEMU's own limit is the guest's address space.
pub const REGION_BYTES_MAX: u64 = 64 << 30;
/// MiB of a region by default: the rings of three feeds of the usual size.
pub const REGION_MIB_DEFAULT: u64 = 256;
/// Bytes of the words.
pub const WORDS_BYTES: u64 = 4096;
/// Bytes of the header, and of each line after it.
pub const LINE_BYTES: u64 = 64;
/// Most feeds of a guest, each with a line of the words.
pub const SLOTS_MAX: u32 = 63;
