//! Memory of one's own that direct writes take.

/// Address, length and place in the file of a direct write are multiples of this many bytes: the block size of all but
/// exotic disks, and no less than any that `statx` (`STATX_DIOALIGN`) reports for one of 4 KiB or less.
pub const ALIGN_BYTES: usize = 4096;

/// Memory aligned for direct writes, filled from the front.
pub struct Buffer {}
