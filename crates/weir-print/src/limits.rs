//! How much of a frame a line shows: whatever the bytes say, the work and the text have a bound.

/// Most headers of a frame, tags and packets inside packets together. VXLAN in a QinQ network has 12.
pub const HEADERS_MAX: usize = 32;

/// Most MPLS labels of a stack; routers push four or five.
pub const LABELS_MAX: usize = 16;

/// Most records of a DNS message that are shown: one of 64 KiB has thousands.
pub const RECORDS_MAX: usize = 32;

/// Most fields of an LLDP frame that are searched for the name of the system.
pub const FIELDS_MAX: usize = 64;

/// An IPv6 packet in an Ethernet frame of the least size, 60 bytes, has so many bytes with its padding.
pub(crate) const PADDED_BYTES_MAX: usize = 46;
