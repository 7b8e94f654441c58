//! Limits of the command line and of the control socket.

/// Connections to a control socket at the same time.
pub const CLIENTS_MAX: usize = 16;

/// Longest filter file (-F), in bytes.
pub const FILTER_FILE_BYTES_MAX: u64 = 1 << 20;

/// Longest pattern of interface names, in bytes: a name has at most 15 characters, with a `*` before, between and after
/// them.
pub const PATTERN_BYTES_MAX: usize = 31;

/// The longest frame that Wireshark reads, in bytes. It reports a file with a longer one as damaged.
/// Source: wiretap/wtap.h, `WTAP_MAX_PACKET_SIZE_STANDARD`.
pub const WIRESHARK_CAPLEN_MAX: u32 = 262_144;

/// The most bytes that are read of a process's command line. Those of virtual machines have some 10 KB.
pub const COMMAND_LINE_BYTES_MAX: u64 = 256 << 10;
