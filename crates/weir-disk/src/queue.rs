//! A queue of writes: a recorder's requests to a disk. The real ones are [`open`](crate::open)ed; tests put one that
//! fails on command in their place.

use std::io;
use std::path::Path;
use std::sync::Arc;

use weir_ring::Mapping;

use crate::Buffer;
use crate::files::Files;

/// Source of the bytes of a write, kept until the write has completed.
pub enum Bytes {
    /// Memory of one's own: its filled part, whose length is a multiple of [`ALIGN_BYTES`](crate::buffer::ALIGN_BYTES).
    Own(Buffer),
    /// A part of a ring, which its writer may be changing: the requester confirms afterwards that it did not.
    Ring {
        /// The ring's memory.
        memory: Arc<Mapping>,
        /// Where in it the bytes begin.
        at: usize,
        /// How many there are.
        bytes: usize,
    },
    /// None: so many bytes of the file are allocated, and are zeros until they are written. Writes there need not make
    /// the file longer, for which file systems let one wait for the other. Where the file system cannot do this, the
    /// request fails, and the file is as it was.
    Preallocate {
        /// How many.
        bytes: u64,
    },
}

/// Identifies a write for its requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A write that is over.
pub struct Completed {
    /// As it was asked for.
    pub ticket: Ticket,
    /// Whether all of it is written. Short writes were gone on with.
    pub result: io::Result<()>,
    /// Its memory, to be used again.
    pub bytes: Bytes,
}

/// A directory's disk, as a recorder uses it.
pub trait Disk: Send + 'static {
    /// An open file of it. Its writes are ended before it is dropped.
    type File: Send + Sync + 'static;
    /// Requests about whole files.
    type Files: Files<File = Self::File>;

    /// Requests about whole files, on any thread.
    fn files(&self) -> Self::Files;

    /// Makes a file that is not there yet, readable by others as `mode` says (less the umask).
    ///
    /// # Errors
    /// The kernel's error.
    fn create(&mut self, path: &Path, mode: u32) -> io::Result<Arc<Self::File>>;

    /// Asks for a write at byte `at` of a file. It is under way when this returns, or its failure is among the
    /// completed ones. With [`WRITES_MAX`](crate::limits::WRITES_MAX) of them under way it waits for one to end.
    /// Writes that are under way together end in any order, so none of them may touch what another one does.
    ///
    /// # Panics
    /// If the place, and how many bytes there are, are no multiples of [`ALIGN_BYTES`](crate::buffer::ALIGN_BYTES), or
    /// there are none.
    fn write(&mut self, file: &Arc<Self::File>, at: u64, bytes: Bytes, ticket: Ticket);

    /// Writes that were asked for and that [`completed`](Disk::completed) has not given back.
    fn pending(&self) -> usize;

    /// Appends the writes that are over to `out`, in any order. With `wait`, and if any are [pending](Disk::pending),
    /// returns with at least one.
    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>);

    /// Writes that are under way may never be answered: dropping this disk waits for none, and their memory stays.
    /// Those that are asked for from now on go as before.
    fn abandon(&mut self);

    /// Notes for the user on how it writes, such as that io_uring is refused: all so far, in a text without a full
    /// stop. It changes when there is more to say, after `create` and `completed`.
    fn note(&self) -> Option<&str> {
        None
    }
}
