//! Limits of the command line and of the control socket.

/// Connections to a control socket at a time.
pub const CLIENTS_MAX: usize = 16;

/// Longest file of a filter (-F), in bytes.
pub const FILTER_FILE_BYTES_MAX: u64 = 1 << 20;

/// Longest pattern of interface names, in bytes: a name has 15 at most, and each may have a `*` beside it.
pub const PATTERN_BYTES_MAX: usize = 31;

/// Most bytes of a frame that Wireshark reads: it takes a file with a longer one for damaged.
/// Source: wiretap/wtap.h, `WTAP_MAX_PACKET_SIZE_STANDARD`.
pub const WIRESHARK_CAPLEN_MAX: u32 = 262_144;

/// Bytes that are read of a process's command line. Those of VMs have some 10 KB.
pub const COMMAND_LINE_BYTES_MAX: u64 = 256 << 10;
