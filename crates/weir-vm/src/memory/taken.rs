//! Places of the region that have a ring.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weir_region::limits::UNIT_BYTES;
use weir_region::places::NoPlace;
use weir_region::{Place, Places};
use weir_ring::{Mapping, Ring};

/// A ring in a guest's region. Dropping it gives its place back, or, where a clone of the ring still holds the memory,
/// leaves it to the last of them: no place is used again while a writer of it lives.
#[derive(Debug)]
pub struct TakenRing {
    // Dropped in this order.
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

    /// Where the ring lies in the region, and its line among the words.
    #[must_use]
    pub fn place(&self) -> Place {
        self.lease.place
    }

    /// The ring, which is writable and fresh: for one [`Writer`](weir_ring::Writer).
    #[must_use]
    pub fn ring(&self) -> &Ring<Mapping> {
        &self.ring.0
    }
}

/// Which places are taken.
#[derive(Debug)]
pub(super) struct Book {
    places: Places,
    /// Places whose [`TakenRing`] is gone, and whose memory somebody may still hold.
    lingering: Vec<(Place, Weak<Mapping>)>,
    /// A place that is never given away, so that others begin at whole huge pages.
    padding: usize,
}

impl Book {
    /// Of a region of at least two pages.
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

/// The right to a place.
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

    /// The memory that must be gone before the place is used again.
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

/// A panic elsewhere leaves the book whole: each change of it is one step.
pub(super) fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}
