//! The page that the guest writes and the host reads.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use weir_region::limits::{SLOTS_MAX, WORDS_BYTES};
use weir_region::words::{AWAKE, position_at, threshold_at};
use weir_ring::memory::Access;
use weir_ring::{AtomicU64, Mapping, RingError, Words as _};

/// The mapped words. Only the broker has them, because whoever writes a line decides when the host sends bells.
#[derive(Debug)]
pub struct Words {
    page: Mapping,
}

impl Words {
    /// Maps the words' BAR.
    ///
    /// # Safety
    /// `fd` must keep [`WORDS_BYTES`] bytes while they are mapped, and nothing in this process may access them except
    /// as `AtomicU64`.
    pub(crate) unsafe fn map(fd: OwnedFd) -> Result<Words, RingError> {
        // SAFETY: the caller promises both.
        let page = unsafe { Mapping::map(fd, WORDS_BYTES, Access::Write) }?;
        Ok(Words { page })
    }

    /// Makes the host send a bell once the slot's ring has `ordinal` frames; [`AWAKE`]: never. There is no fence after
    /// this store: [`arming`](crate::arming) makes the fence that it needs.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_threshold(&self, slot: u32, ordinal: u64) {
        self.threshold(slot).store(ordinal, Ordering::Relaxed);
    }

    /// Reports how far the slowest reader of the slot's ring has read: the ordinal of its next frame.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_position(&self, slot: u32, ordinal: u64) {
        self.word(position_at(slot)).store(ordinal, Ordering::Relaxed);
    }

    pub(crate) fn threshold(&self, slot: u32) -> &AtomicU64 {
        self.word(threshold_at(slot))
    }

    /// Clears the line of a slot without sleepers and readers.
    pub(crate) fn clear(&self, slot: u32) {
        self.set_threshold(slot, AWAKE);
        self.set_position(slot, 0);
    }

    /// Clears the lines of all slots: values that an earlier broker left there are not valid.
    pub(crate) fn clear_all(&self) {
        (0..SLOTS_MAX).for_each(|slot| self.clear(slot));
    }

    /// Returns the word at byte `at`.
    fn word(&self, at: u64) -> &AtomicU64 {
        // `weir_region::words` returns multiples of 8 within the page, and `usize` has 64 bits (`weir_ring::geometry`).
        &self.page.words()[at as usize / 8]
    }
}
