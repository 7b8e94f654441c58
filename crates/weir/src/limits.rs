//! Limits of the command line and of the control socket.

/// Connections to a control socket at a time.
pub const CLIENTS_MAX: usize = 16;

/// Longest pattern of interface names, in bytes: a name has 15 at most, and each may have a `*` beside it.
pub const PATTERN_BYTES_MAX: usize = 31;
