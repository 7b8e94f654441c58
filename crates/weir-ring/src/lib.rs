//! The shared capture ring: one writer, any number of readers, every frame counted.
//!
//! A ring is `1 + N` blocks of 1 MiB. Block 0 holds a pcapng header, the writer's words and an index. The other blocks
//! hold consecutive pcapng Enhanced Packet Blocks, so ring memory has the format of a file. The writer never waits: a
//! reader that is overtaken is *lapped*, and learns exactly how many frames it missed.
//!
//! | module | contents |
//! |---|---|
//! | [`geometry`] | the offset of every word; the size classes, which decide when a block is closed |
//! | [`header`] | writes and reads block 0: pcapng header area, identity, geometry |
//! | [`memory`] | mappings: memfd, file on tmpfs or hugetlbfs, mmapable BPF array |
//! | [`writer`], [`reader`] | the two halves of the algorithm |
//! | [`batch`] | a reader's own copy of some records |
//! | `copy` | copies bytes into and out of ring memory |
//! | [`idle`] | the idle strategy of a reader that finds nothing |
//! | [`doorbell`], [`wake`] | sleeping until N frames have come or T ns have passed |
//! | [`pass`] | passes a feed's rings and wake-up channel to another process over a Unix socket |
//! | [`snapshot`] | copies a live ring into a pcapng file |
//! | [`ledger`] | offered = filtered + blocked + sampled + captured + named drops |
//! | [`limits`] | limits of this crate |
//!
//! The algorithm runs over the [`Words`] trait (mapped memory in service, a `Vec` in models), with
//! atomics from `sync`, so that loom checks this very code.

pub mod batch;
mod copy;
pub mod doorbell;
pub mod error;
pub mod geometry;
pub mod header;
pub mod idle;
pub mod ledger;
pub mod limits;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod pass;
pub mod reader;
#[cfg(not(loom))]
pub mod snapshot;
mod sync;
#[cfg(all(test, not(loom)))]
mod testing;
#[cfg(not(loom))]
pub mod wake;
pub mod writer;

use std::sync::Arc;

use weir_frame::pcapng::Interface;

pub use batch::Batch;
pub use error::RingError;
pub use geometry::Geometry;
pub use header::{Clock, Identity, RingSpec, WriterKind};
pub use ledger::Ledger;
#[cfg(not(loom))]
pub use memory::Mapping;
pub use reader::{BlockLook, BlockRest, FrameHead, Poll, Reader, RestLook, Start, Tally, Whole};
pub use sync::AtomicU64;
pub use writer::Writer;

/// Ring memory as 64-bit words. Every process accesses them by atomic operations, or through the module `copy`
/// (decision 0003).
///
/// A BPF writer also makes stores of other widths. This process sees them as changes of the same words.
pub trait Words: Send + Sync {
    /// The whole ring: block 0, then the data blocks. Every call returns the same memory.
    fn words(&self) -> &[AtomicU64];

    /// Whether a store is allowed. If not (memory mapped read-only), a store would end the process.
    fn is_writable(&self) -> bool {
        true
    }
}

impl Words for Vec<AtomicU64> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// A ring in memory, from which writers and readers are created. Cheap to clone.
pub struct Ring<M> {
    memory: Arc<M>,
    geometry: Geometry,
}

impl<M> Clone for Ring<M> {
    fn clone(&self) -> Self {
        Ring { memory: Arc::clone(&self.memory), geometry: self.geometry }
    }
}

impl<M: Words> Ring<M> {
    /// Creates a ring of known geometry. The memory must be large enough.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] if the memory is smaller.
    pub fn new(memory: Arc<M>, geometry: Geometry) -> Result<Self, RingError> {
        let (have, need) = (memory.words().len(), geometry.total_words());
        if have < need {
            return Err(RingError::TooSmall { have: have as u64 * 8, need: need as u64 * 8 });
        }
        Ok(Ring { memory, geometry })
    }

    /// Opens the ring that block 0 of this memory describes.
    ///
    /// # Errors
    /// [`RingError`] if block 0 does not describe a ring of this version, or the memory is smaller than the ring.
    pub fn open(memory: Arc<M>) -> Result<Self, RingError> {
        let geometry = header::read(memory.words())?.geometry;
        Ring::new(memory, geometry)
    }

    /// Returns the offsets and sizes of the ring.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the ring's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<M> {
        &self.memory
    }

    /// Reads the pcapng header and the description of this ring from block 0.
    ///
    /// # Errors
    /// [`RingError`] if block 0 does not describe a ring of this version.
    pub fn identity(&self) -> Result<Identity, RingError> {
        header::read(self.words())
    }

    /// Returns the number of interfaces described so far. The interface id of every record is below this number.
    ///
    /// At most `header::INTERFACES_MAX`, whatever the memory contains, so that a table of this length can be allocated
    /// (in a model, whose ring describes no interfaces, `u32::MAX`). [`identity`](Ring::identity) checks that each
    /// interface has a description.
    #[must_use]
    pub fn interfaces(&self) -> u32 {
        let Some(at) = self.geometry.interfaces_at else { return u32::MAX };
        // P, pairs with O in `append_interface`: the description of a counted interface is complete.
        let count = sync::load_acquire(&self.words()[at]) as u32;
        count.min(header::INTERFACES_MAX)
    }

    /// Adds the description of one more interface to a ring, which may be in use, and returns the interface's id.
    /// Frames of this interface may be written once this function has returned. Only the owner of the memory may call
    /// it, on one thread at a time.
    ///
    /// # Errors
    /// As [`header::append`]; [`RingError::ReadOnly`] for a reader's memory. A BPF array is frozen, so it is read-only
    /// even for its owner, who lets a BPF program make the stores of [`header::append`].
    pub fn append_interface(&self, interface: &Interface) -> Result<u32, RingError> {
        if !self.memory.is_writable() {
            return Err(RingError::ReadOnly);
        }
        let append = header::append(self.words(), interface)?;
        for (index, value) in append.stores {
            self.words()[index as usize].store(value, sync::Ordering::Relaxed);
        }
        let (index, value) = append.count;
        // O, pairs with P in `Ring::interfaces` and `header::read`: a description is complete before it is counted.
        self.words()[index as usize].store(value, sync::Ordering::Release);
        Ok(append.id)
    }

    /// Returns the number of frames published since the ring began, for ledgers and displays. The writer updates the
    /// number with each burst, once the frames of the burst can be read.
    #[must_use]
    pub fn frames_written(&self) -> u64 {
        self.writer_word(geometry::WriterWord::Ordinal)
    }

    /// Returns one of the writer's words, for ledgers.
    #[must_use]
    pub fn writer_word(&self, word: geometry::WriterWord) -> u64 {
        // J, L and N, pair with I, K and M in Writer: stores that the writer made before this one are visible, too.
        sync::load_acquire(&self.words()[self.geometry.writer_word(word)])
    }

    /// Whether the writer has closed the ring: no more frames will come.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.writer_word(geometry::WriterWord::Closed) != 0
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }
}
