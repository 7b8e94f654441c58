//! The page that the guest writes and the host reads.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use weir_region::limits::{SLOTS_MAX, WORDS_BYTES};
use weir_region::words::{AWAKE, position_at, threshold_at};
use weir_ring::memory::Access;
use weir_ring::{AtomicU64, Mapping, RingError, Words as _};

/// The words, mapped. The broker has them alone: the writer of a line decides when the host rings for it.
#[derive(Debug)]
pub struct Words {
    page: Mapping,
}

impl Words {
    /// Maps the words' BAR.
    ///
    /// # Safety
    /// `fd` must keep [`WORDS_BYTES`] bytes while they are mapped, and nothing in this process may reach them otherwise
    /// than as `AtomicU64`.
    pub(crate) unsafe fn map(fd: OwnedFd) -> Result<Words, RingError> {
        // SAFETY: the caller's word for both.
        let page = unsafe { Mapping::map(fd, WORDS_BYTES, Access::Write) }?;
        Ok(Words { page })
    }

    /// Has the host ring once the slot's ring holds `ordinal` frames; [`AWAKE`]: not at all. No fence is behind this
    /// store: [`arming`](crate::arming) makes the one that it needs.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_threshold(&self, slot: u32, ordinal: u64) {
        self.threshold(slot).store(ordinal, Ordering::Relaxed);
    }

    /// Says how far the slowest reader of the slot's ring has come: the ordinal of its next frame.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn set_position(&self, slot: u32, ordinal: u64) {
        self.word(position_at(slot)).store(ordinal, Ordering::Relaxed);
    }

    pub(crate) fn threshold(&self, slot: u32) -> &AtomicU64 {
        self.word(threshold_at(slot))
    }

    /// Nobody sleeps on this slot, or reads it.
    pub(crate) fn clear(&self, slot: u32) {
        self.set_threshold(slot, AWAKE);
        self.set_position(slot, 0);
    }

    /// The same for all slots: data that an earlier broker left there is invalid.
    pub(crate) fn clear_all(&self) {
        (0..SLOTS_MAX).for_each(|slot| self.clear(slot));
    }

    /// A word by its place in bytes.
    fn word(&self, at: u64) -> &AtomicU64 {
        // `weir_region::words` gives multiples of 8 on the page, and this is 64 bits wide (`weir_ring::geometry`).
        &self.page.words()[at as usize / 8]
    }
}
