//! The shared capture ring: one writer, any number of readers, every frame counted.
//!
//! A ring is `1 + N` blocks of 1 MiB. Block 0 holds a pcapng header, the writer's words and an index;
//! the other blocks hold pcapng Enhanced Packet Blocks end to end, so that ring memory *is* file
//! content. The writer never waits: a reader that is overtaken is *lapped* and told how many frames
//! it missed, to the frame.
//!
//! | module | what it holds |
//! |---|---|
//! | [`geometry`] | the offset of every word; the rule by which a block is closed |
//! | [`header`] | block 0 written and read: pcapng header area, identity, geometry |
//! | [`memory`] | mappings: memfd, file on tmpfs or hugetlbfs, mmapable BPF array |
//! | [`writer`], [`reader`] | the two halves of the algorithm |
//! | [`batch`] | a reader's own copy of some records |
//! | `copy` | bytes into and out of ring memory |
//! | [`idle`] | the idle strategy of a reader that finds nothing |
//! | [`doorbell`], [`wake`] | sleeping until N frames or T ns have come |
//! | [`pass`] | a feed's rings and their wake-ups, handed to another process over a Unix socket |
//! | [`snapshot`] | a live ring as a pcapng file |
//! | [`ledger`] | offered = filtered + captured + named drops |
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

/// Ring memory as 64-bit words, which every process touches atomically, or by `copy` (decision 0003).
///
/// A BPF writer stores with other widths; to this process those are another's stores, seen through
/// the same words.
pub trait Words: Send + Sync {
    /// The whole ring: block 0, then the data blocks. The same memory each time.
    fn words(&self) -> &[AtomicU64];

    /// Whether a store is allowed. Where it is not (memory mapped read-only), it would end the process.
    fn is_writable(&self) -> bool {
        true
    }
}

impl Words for Vec<AtomicU64> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// A ring in some memory, from which writers and readers are made. Cheap to clone.
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
    /// A ring of known geometry; the memory must hold all of it.
    ///
    /// # Errors
    /// [`RingError::TooSmall`] where it does not.
    pub fn new(memory: Arc<M>, geometry: Geometry) -> Result<Self, RingError> {
        let (have, need) = (memory.words().len(), geometry.total_words());
        if have < need {
            return Err(RingError::TooSmall { have: have as u64 * 8, need: need as u64 * 8 });
        }
        Ok(Ring { memory, geometry })
    }

    /// The ring that this memory says it holds.
    ///
    /// # Errors
    /// [`RingError`] if block 0 is no ring of this version, or the memory ends before the ring does.
    pub fn open(memory: Arc<M>) -> Result<Self, RingError> {
        let geometry = header::read(memory.words())?.geometry;
        Ring::new(memory, geometry)
    }

    /// Offsets and sizes.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The memory itself.
    #[must_use]
    pub fn memory(&self) -> &Arc<M> {
        &self.memory
    }

    /// The pcapng header and the fixed facts of this ring, read from block 0.
    ///
    /// # Errors
    /// [`RingError`] if block 0 does not hold a ring of this version.
    pub fn identity(&self) -> Result<Identity, RingError> {
        header::read(self.words())
    }

    /// Interfaces described so far. A record names one of them by a lower number.
    ///
    /// Bounded whatever the memory says, so that a table of this length may be made; that each has a
    /// description is checked by [`identity`](Ring::identity).
    #[must_use]
    pub fn interfaces(&self) -> u32 {
        let Some(at) = self.geometry.interfaces_at else { return u32::MAX };
        // P, pairs with O: an interface that is counted is described.
        let count = sync::load_acquire(&self.words()[at]) as u32;
        count.min(header::INTERFACES_MAX)
    }

    /// Describes one more interface in a ring that may be in use, and gives its id. Frames of it may be written
    /// once this has returned. For the owner of the memory, and for one thread at a time.
    ///
    /// # Errors
    /// As [`header::append`]; [`RingError::ReadOnly`] for a reader's memory. A BPF array is frozen, so it is
    /// read-only even for its owner, who has a program make the stores of [`header::append`].
    pub fn append_interface(&self, interface: &Interface) -> Result<u32, RingError> {
        if !self.memory.is_writable() {
            return Err(RingError::ReadOnly);
        }
        let append = header::append(self.words(), interface)?;
        for (index, value) in append.stores {
            self.words()[index as usize].store(value, sync::Ordering::Relaxed);
        }
        let (index, value) = append.count;
        // O, pairs with P in `Ring::interfaces` and `header::read`: a description is whole before it is counted.
        self.words()[index as usize].store(value, sync::Ordering::Release);
        Ok(append.id)
    }

    /// Frames written since the ring began. A count for ledgers and screens: it is published with
    /// each burst, so it never runs ahead of what can be read.
    #[must_use]
    pub fn frames_written(&self) -> u64 {
        self.writer_word(geometry::WriterWord::Ordinal)
    }

    /// Any one of the writer's words, for ledgers.
    #[must_use]
    pub fn writer_word(&self, word: geometry::WriterWord) -> u64 {
        // J, L and N: earlier stores of the writer are seen, too.
        sync::load_acquire(&self.words()[self.geometry.writer_word(word)])
    }

    /// Whether the writer has said that nothing more will come.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.writer_word(geometry::WriterWord::Closed) != 0
    }

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }
}
