//! Limits for the work and the text that one frame may cause, whatever its bytes.

/// Most headers of a frame, with tags and encapsulated packets. VXLAN in a QinQ network has 12.
pub const HEADERS_MAX: usize = 32;

/// Most MPLS labels in a stack. Routers usually push at most four or five.
pub const LABELS_MAX: usize = 16;

/// Most records of a DNS message that are printed. A message of 64 KiB may have thousands.
pub const RECORDS_MAX: usize = 32;

/// Most TLVs of an LLDP frame that are searched for the system name.
pub const FIELDS_MAX: usize = 64;

/// Longest IPv6 packet, with padding, in an Ethernet frame of the minimum size (60 bytes).
pub(crate) const PADDED_BYTES_MAX: usize = 46;
