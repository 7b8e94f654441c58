//! Limits for reading alerts.

/// Longest line that is parsed, in bytes; longer lines are skipped. A line of Suricata has about 1 KB, or about 10 KB
/// with the packet and its payload.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Most characters that are kept of each text of an alert: the signature, the category.
pub const ALERT_CHARS_MAX: usize = 200;
