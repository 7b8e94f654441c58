//! The places of the region that have a ring.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weir_region::limits::UNIT_BYTES;
use weir_region::places::NoPlace;
use weir_region::{Place, Places};
use weir_ring::{Mapping, Ring};

/// A ring in a guest's region. Dropping it frees its place. If a clone of the ring still holds the memory, the place
/// becomes free with the last clone: no place is used again while a writer of it exists.
#[derive(Debug)]
pub struct TakenRing {
    // The fields are dropped in this order.
    ring: Held,
    lease: Lease,
}

struct Held(Ring<Mapping>);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({:?})", self.0.geometry())
    }
}

impl TakenRing {
    pub(super) fn new(ring: Ring<Mapping>, lease: Lease) -> TakenRing {
        TakenRing { ring: Held(ring), lease }
    }

    /// Returns the place of the ring in the region, and its line among the words.
    #[must_use]
    pub fn place(&self) -> Place {
        self.lease.place
    }

    /// Returns the ring, which is empty and writable: for one [`Writer`](weir_ring::Writer).
    #[must_use]
    pub fn ring(&self) -> &Ring<Mapping> {
        &self.ring.0
    }
}

/// The record of the places that are in use.
#[derive(Debug)]
pub(super) struct Book {
    places: Places,
    /// Places whose [`TakenRing`] was dropped, and whose memory may still be held by clones of the ring.
    lingering: Vec<(Place, Weak<Mapping>)>,
    /// Number of places that are never given to a ring, so that the others begin at whole huge pages: 0 or 1.
    padding: usize,
}

impl Book {
    /// Creates the record of a region of at least two pages.
    pub(super) fn new(region_bytes: u64, page_bytes: u64) -> Book {
        let mut places = Places::new(region_bytes);
        let before = page_bytes.saturating_sub(UNIT_BYTES);
        let padding = usize::from(before != 0 && places.take(before).is_ok());
        Book { places, lingering: Vec::new(), padding }
    }

    pub(super) fn rings(&mut self) -> usize {
        self.sweep();
        self.places.taken().len() - self.padding
    }

    pub(super) fn used_bytes(&mut self) -> u64 {
        self.sweep();
        self.places.taken()[self.padding..].iter().map(|place| place.bytes).sum()
    }

    fn sweep(&mut self) {
        let places = &mut self.places;
        self.lingering.retain(|(place, memory)| {
            let is_held = memory.strong_count() != 0;
            if !is_held {
                places.give_back(*place);
            }
            is_held
        });
    }
}

/// The right to use a place.
#[derive(Debug)]
pub(super) struct Lease {
    place: Place,
    memory: Weak<Mapping>,
    book: Arc<Mutex<Book>>,
}

impl Lease {
    pub(super) fn take(book: &Arc<Mutex<Book>>, bytes: u64) -> Result<Lease, NoPlace> {
        let mut locked = lock(book);
        locked.sweep();
        let place = locked.places.take(bytes)?;
        Ok(Lease { place, memory: Weak::new(), book: Arc::clone(book) })
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Sets the memory that must be unmapped before the place is used again.
    pub(super) fn watch(&mut self, memory: &Arc<Mapping>) {
        self.memory = Arc::downgrade(memory);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut book = lock(&self.book);
        book.lingering.push((self.place, std::mem::take(&mut self.memory)));
        book.sweep();
    }
}

/// Locks the record. A poisoned lock is ignored: each change of the record is one step, so it is consistent after a
/// panic.
pub(super) fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}
