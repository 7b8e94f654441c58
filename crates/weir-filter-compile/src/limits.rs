//! Limits of expressions.

/// Longest text that is taken, in bytes.
pub const TEXT_MAX: usize = 64 << 10;
