//! Errors of a ring.

use std::io;

use thiserror::Error;

/// Why a ring cannot be created, attached or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RingError {
    /// The memory is smaller than the ring.
    #[error("ring memory has {have} bytes of the {need} that its header asks for")]
    TooSmall {
        /// Bytes of the memory.
        have: u64,
        /// Bytes that are needed.
        need: u64,
    },
    /// A ring cannot have this number of data blocks.
    #[error(
        "a ring cannot have {blocks} data blocks of 1 MiB; use a power of two from {min} to {max}"
    )]
    BadBlockCount {
        /// Requested or found number of data blocks.
        blocks: u64,
        /// Fewest blocks.
        min: u64,
        /// Most blocks.
        max: u64,
    },
    /// The memory does not hold a ring.
    #[error(
        "this memory is not a Weir ring (no magic at offset {offset:#x}); was it handed over whole?"
    )]
    NotARing {
        /// Offset at which the magic should be.
        offset: usize,
    },
    /// The ring has another format version.
    #[error(
        "ring format {found}, but this build reads {known}; use the same release on both sides"
    )]
    Version {
        /// Version in memory.
        found: u32,
        /// Version of this build.
        known: u32,
    },
    /// The pcapng header does not fit its area.
    #[error(
        "the descriptions of {interfaces} interfaces need {need} bytes, a ring has {have}; take the rest in another \
         feed, or shorten the filter text"
    )]
    HeaderTooLong {
        /// Interfaces to describe.
        interfaces: usize,
        /// Bytes that the descriptions need.
        need: usize,
        /// Bytes of the header area.
        have: usize,
    },
    /// The interface cannot share a ring with the interfaces that are described in it.
    #[error(
        "{interface}: a ring has interfaces of one link type and snaplen, {link_type} and {snaplen} in this one; give \
         this interface a feed of its own"
    )]
    OtherKind {
        /// Name of the interface that was to be added.
        interface: String,
        /// Link type of the ring.
        link_type: u16,
        /// Snaplen of the ring.
        snaplen: u32,
    },
    /// The memory is mapped read-only: only the owner of a ring describes interfaces in it.
    #[error("this memory is a reader's; only the owner of a ring adds interfaces to it")]
    ReadOnly,
    /// The contents of ring memory contradict each other: the writer is hostile or broken.
    #[error("ring memory is corrupt at block {block}, offset {offset}: {what}")]
    Corrupt {
        /// Number of the block since the ring began.
        block: u64,
        /// Byte offset in the block.
        offset: u32,
        /// The value that is not valid.
        what: &'static str,
    },
    /// The owner of the memory could take it away from a reader.
    #[error(
        "the ring's memory is neither a memfd sealed against shrinking, growing and writing nor a frozen BPF array, so \
         its owner could end this process; refuse it, or trust the owner"
    )]
    NotSealed,
    /// Pages of the sealed memory are missing: the reader would allocate them, and be charged for them.
    #[error(
        "only {have} bytes of the {need} of the ring's memory are there; refuse it, or ask its owner to allocate it \
         whole"
    )]
    Sparse {
        /// Bytes that are there.
        have: u64,
        /// Bytes of the memory.
        need: u64,
    },
    /// The system does not have enough free huge pages.
    #[error(
        "a ring takes {pages} huge pages of 2 MiB, which are not free; reserve more (`sysctl vm.nr_hugepages`), or \
         take ordinary pages"
    )]
    NoHugePages {
        /// Huge pages that the ring needs.
        pages: u64,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The descriptor is not a wake page, which a consumer's `Sleeper` makes.
    #[error(
        "this is no wake page (a memfd sealed against resizing and future writes); refuse the consumer"
    )]
    NotAWakePage,
    /// The descriptor is not a waker, which a consumer's `Sleeper` makes.
    #[error("this is no waker (a Unix socket of sequenced packets); refuse the consumer")]
    NotAWaker,
    /// The process that wrote the rings has ended without closing them.
    #[error(
        "the process that wrote the ring has ended without closing it; what was in the ring was read, {frames} frames; \
         start the capture again"
    )]
    WriterGone {
        /// Frames that were written into the ring.
        frames: u64,
    },
    /// A system call failed.
    #[error("{doing}")]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

#[cfg(not(loom))]
impl RingError {
    pub(crate) fn os(doing: &'static str) -> impl FnOnce(rustix::io::Errno) -> RingError {
        move |errno| RingError::Os { doing, source: errno.into() }
    }
}
