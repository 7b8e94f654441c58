//! Limits of the command line and of the control socket.

/// The most connections to a control socket at the same time.
pub const CLIENTS_MAX: usize = 16;

/// Longest filter file (-F), in bytes.
pub const FILTER_FILE_BYTES_MAX: u64 = 1 << 20;

/// Longest pattern of interface names, in bytes: the 15 characters of the longest name, with a `*` before, between and
/// after them.
pub const PATTERN_BYTES_MAX: usize = 31;

/// The longest frame that Wireshark reads, in bytes. Wireshark reports a file with a longer frame as damaged. Source:
/// wiretap/wtap.h, `WTAP_MAX_PACKET_SIZE_STANDARD`.
pub const WIRESHARK_CAPLEN_MAX: u32 = 262_144;

/// The most bytes of a process's command line that are read. The command lines of virtual machines have about 10 KB.
pub const COMMAND_LINE_BYTES_MAX: u64 = 256 << 10;
