//! The place of a ring in a region.

use serde::{Deserialize, Serialize};

use crate::limits::{SLOTS_MAX, UNIT_BYTES};

/// The place of a ring in the region, and the line of its readers in the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Offset of the first byte, after the region's header: a multiple of [`UNIT_BYTES`].
    pub offset: u64,
    /// Length in bytes: a multiple of [`UNIT_BYTES`].
    pub bytes: u64,
    /// Number of the line in the words.
    pub slot: u32,
}

impl Place {
    /// Whether the place is valid in a region of this many bytes.
    #[must_use]
    pub fn fits(&self, region_bytes: u64) -> bool {
        let is_whole = |bytes: u64| bytes != 0 && bytes.is_multiple_of(UNIT_BYTES);
        let end = self.offset.checked_add(self.bytes);
        is_whole(self.offset)
            && is_whole(self.bytes)
            && end.is_some_and(|end| end <= region_bytes)
            && self.slot < SLOTS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_the_region_does_not_fit() {
        let place = |offset, bytes, slot| Place { offset, bytes, slot };
        let fits = |place: Place| place.fits(8 << 20);
        assert!(fits(place(1 << 20, 7 << 20, 0)));
        assert!(!fits(place(0, 1 << 20, 0)), "the header");
        assert!(!fits(place(1 << 20, 8 << 20, 0)) && !fits(place(8 << 20, 1 << 20, 0)));
        assert!(!fits(place(1 << 20, 0, 0)) && !fits(place(1 << 20, 4096, 0)));
        assert!(!fits(place((1 << 20) + 4096, 1 << 20, 0)));
        assert!(!fits(place(u64::MAX - (1 << 20) + 1, 1 << 20, 0)));
        assert!(!fits(place(1 << 20, 1 << 20, SLOTS_MAX)));
    }
}
