//! Allocates places in a region, on the host.

use crate::limits::{SLOTS_MAX, UNIT_BYTES};
use crate::place::Place;

/// Allocates places in a region: the first gap that is long enough.
#[derive(Clone, Debug)]
pub struct Places {
    region_bytes: u64,
    /// Places in use, in order of their offsets.
    taken: Vec<Place>,
}

/// Why a ring gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// There is no gap of this many bytes.
    #[error(
        "its ring takes {} MiB, and of the {} MiB of this guest's region at most {} are free in a row; close a feed, \
         or give the guest more (region_mib)",
        need.div_ceil(UNIT_BYTES), region / UNIT_BYTES, longest / UNIT_BYTES
    )]
    Room {
        /// Bytes that the ring needs.
        need: u64,
        /// Bytes of the region.
        region: u64,
        /// Bytes of the longest gap.
        longest: u64,
    },
    /// All lines are in use.
    #[error("a guest has {SLOTS_MAX} feeds at most; close one")]
    Slot,
}

impl Places {
    /// Creates an allocator for a region of this many bytes, of which only the header is in use.
    #[must_use]
    pub fn new(region_bytes: u64) -> Places {
        Places { region_bytes, taken: Vec::new() }
    }

    /// Whether no place is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Returns the places in use, in order of their offsets.
    #[must_use]
    pub fn taken(&self) -> &[Place] {
        &self.taken
    }

    /// Allocates a place of this many bytes.
    ///
    /// # Errors
    /// [`NoPlace`].
    pub fn take(&mut self, bytes: u64) -> Result<Place, NoPlace> {
        let bytes = bytes.max(1).next_multiple_of(UNIT_BYTES);
        let is_free = |slot: &u32| !self.taken.iter().any(|place| place.slot == *slot);
        let slot = (0..SLOTS_MAX).find(is_free).ok_or(NoPlace::Slot)?;
        let (mut offset, mut longest) = (UNIT_BYTES, 0);
        let ends = self.taken.iter().map(|place| (place.offset, place.offset + place.bytes));
        for (at, (begin, end)) in ends.chain([(self.region_bytes, 0)]).enumerate() {
            let gap = begin.saturating_sub(offset);
            if gap >= bytes {
                let place = Place { offset, bytes, slot };
                self.taken.insert(at, place);
                return Ok(place);
            }
            (offset, longest) = (end, longest.max(gap));
        }
        Err(NoPlace::Room { need: bytes, region: self.region_bytes, longest })
    }

    /// Frees a place. Does nothing if the place is not in use.
    pub fn give_back(&mut self, place: Place) {
        self.taken.retain(|other| *other != place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_fit_is_refused_with_numbers() {
        let mut places = Places::new(8 << 20);
        let first = places.take(5 << 20).unwrap();
        assert_eq!(first, Place { offset: 1 << 20, bytes: 5 << 20, slot: 0 });
        let refused = places.take(3 << 20).unwrap_err();
        assert_eq!(refused, NoPlace::Room { need: 3 << 20, region: 8 << 20, longest: 2 << 20 });
        assert!(refused.to_string().contains("takes 3 MiB, and of the 8 MiB"), "{refused}");
        places.take(2 << 20).unwrap();
        places.give_back(first);
        assert_eq!(places.take(1).unwrap().offset, 1 << 20);
        let mut many = Places::new(1 << 30);
        (0..SLOTS_MAX).for_each(|_| _ = many.take(1).unwrap());
        assert_eq!(many.take(1), Err(NoPlace::Slot));
    }

    proptest! {
        #[test]
        fn places_never_overlap_and_all_of_the_region_comes_back(
            steps in prop::collection::vec((1u64..20, any::<prop::sample::Index>(), any::<bool>()), 0..200),
        ) {
            const REGION: u64 = 64 << 20;
            let mut places = Places::new(REGION);
            for (mib, which, gives_back) in steps {
                if gives_back && !places.is_empty() {
                    let place = *which.get(places.taken());
                    places.give_back(place);
                } else {
                    let before = places.taken().len();
                    let took = places.take(mib << 20);
                    prop_assert_eq!(places.taken().len(), before + usize::from(took.is_ok()));
                }
                let taken = places.taken();
                prop_assert!(taken.iter().all(|place| place.fits(REGION)));
                let apart = |two: &[Place]| two[0].offset + two[0].bytes <= two[1].offset;
                prop_assert!(taken.windows(2).all(apart), "{:?}", taken);
                let mut slots: Vec<u32> = taken.iter().map(|place| place.slot).collect();
                slots.sort_unstable();
                slots.dedup();
                prop_assert_eq!(slots.len(), taken.len());
            }
            while let Some(place) = places.taken().first().copied() {
                places.give_back(place);
            }
            prop_assert!(places.take(REGION - UNIT_BYTES).is_ok());
        }
    }
}
