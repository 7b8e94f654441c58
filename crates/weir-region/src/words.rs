//! The guest's lines: for each of its feeds, when the guest wants to be woken, and how far its readers have read.
//!
//! A line has two words of 8 bytes, as the guest's processor stores them (little-endian). The *threshold* is an ordinal
//! of the ring at which some reader in the guest wants to be woken, as in `weir-ring`'s wake pages (all ones: no reader
//! sleeps). The *position* is the ordinal of the slowest reader's next frame.

use crate::limits::{LINE_BYTES, SLOTS_MAX};

/// The threshold of a line without a sleeping reader.
pub const AWAKE: u64 = u64::MAX;

/// Returns the offset of a feed's threshold, in bytes.
///
/// # Panics
/// If there is no such line.
#[must_use]
pub fn threshold_at(slot: u32) -> u64 {
    assert!(slot < SLOTS_MAX, "line {slot}");
    LINE_BYTES * (u64::from(slot) + 1)
}

/// Returns the offset of a feed's position, in bytes.
///
/// # Panics
/// If there is no such line.
#[must_use]
pub fn position_at(slot: u32) -> u64 {
    threshold_at(slot) + 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::WORDS_BYTES;

    #[test]
    fn lines_are_apart_and_on_the_page() {
        assert_eq!((threshold_at(0), position_at(0)), (64, 72));
        assert_eq!(threshold_at(SLOTS_MAX - 1) + LINE_BYTES, WORDS_BYTES);
    }
}
