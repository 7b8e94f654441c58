//! Limits of reading.

/// Longest line that is looked at, in bytes. Suricata writes a kilobyte a line, and some ten with the packet and its
/// payload.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Longest text of an alert that is kept, in characters: its signature, its category.
pub const ALERT_CHARS_MAX: usize = 200;
