//! Limits of frames and of their parsing.

/// Longest frame that a record may carry: the longest super-frame of BIG TCP (`GSO_MAX_SIZE` in the kernel,
/// 8 x 65,535 bytes) with its link-layer header and tags, rounded up. Longer frames are cut here and keep
/// their `wire_len`.
pub const CAPLEN_MAX: u32 = 516 * 1024;

/// Deepest stack of VLAN tags that is walked. Two are usual; a fifth ends the walk.
pub const VLANS_MAX: usize = 4;

/// Most extension headers that are walked. RFC 8200 foresees each once, destination options twice.
pub const EXTENSIONS_MAX: usize = 8;

/// Most shards that a link is split into.
pub const SHARDS_MAX: u32 = 1024;
