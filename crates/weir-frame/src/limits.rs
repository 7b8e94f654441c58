//! Limits of frames and of their parsing.

/// Longest frame in a record: the longest super-frame of BIG TCP (`GSO_MAX_SIZE` in the kernel, 8 x 65,535 bytes)
/// with its link-layer header and tags, rounded up. Longer frames are cut to this length; their `wire_len` is not
/// changed.
pub const CAPLEN_MAX: u32 = 516 * 1024;

/// Most VLAN tags that are parsed. Two are usual; the parser stops at a fifth.
pub const VLANS_MAX: usize = 4;

/// Most extension headers that are parsed. RFC 8200 allows each once, and destination options twice.
pub const EXTENSIONS_MAX: usize = 8;

/// Most shards that a link is split into.
pub const SHARDS_MAX: u32 = 1024;
