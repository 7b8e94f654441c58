//! A queue of writes to a disk, as a recorder uses it. [`open`](crate::open) opens a real disk; tests use one that
//! fails on command.

use std::io;
use std::path::Path;
use std::sync::Arc;

use weir_ring::Mapping;

use crate::Buffer;
use crate::files::Files;

/// The bytes of a write, which are kept until the write has completed.
pub enum Bytes {
    /// The filled part of a buffer. Its length is a multiple of
    /// [`ALIGN_BYTES`](crate::buffer::ALIGN_BYTES).
    Own(Buffer),
    /// A part of a ring, which the ring's writer may overwrite meanwhile. The requester must check afterwards that the
    /// part was not overwritten.
    Ring {
        /// The ring's memory.
        memory: Arc<Mapping>,
        /// Offset of the first byte.
        at: usize,
        /// Number of bytes.
        bytes: usize,
    },
    /// No bytes to write: this many bytes of the file are allocated, and read as zeros until they are written. Later
    /// writes to them do not extend the file; file systems serialize writes that do. If the file system does not
    /// support this, the request fails, and the file is unchanged.
    Preallocate {
        /// Number of bytes.
        bytes: u64,
    },
}

/// Identifies a write for its requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A completed write.
pub struct Completed {
    /// The ticket of the request.
    pub ticket: Ticket,
    /// `Ok` if all bytes were written. Short writes have been continued.
    pub result: io::Result<()>,
    /// The memory of the write, for reuse.
    pub bytes: Bytes,
}

/// The disk of a directory, as a recorder uses it.
pub trait Disk: Send + 'static {
    /// An open file of this disk. It must not be dropped before its writes have completed.
    type File: Send + Sync + 'static;
    /// Requests for whole files.
    type Files: Files<File = Self::File>;

    /// Returns the requests for whole files, which can be used on any thread.
    fn files(&self) -> Self::Files;

    /// Creates a file, which must not exist, with the permissions `mode` (less the umask).
    ///
    /// # Errors
    /// The kernel's error.
    fn create(&mut self, path: &Path, mode: u32) -> io::Result<Arc<Self::File>>;

    /// Starts a write at byte `at` of a file. When this returns, the write is in progress, or its failure is among the
    /// completed writes. If [`WRITES_MAX`](crate::limits::WRITES_MAX) writes are in progress, waits until one
    /// completes. Writes in progress complete in any order, so they must not overlap.
    ///
    /// # Panics
    /// If `at` or the number of bytes is not a multiple of [`ALIGN_BYTES`](crate::buffer::ALIGN_BYTES), or
    /// there are no bytes.
    fn write(&mut self, file: &Arc<Self::File>, at: u64, bytes: Bytes, ticket: Ticket);

    /// Returns the number of writes that were started and that [`completed`](Disk::completed) has not returned yet.
    fn pending(&self) -> usize;

    /// Appends the completed writes to `out`, in any order. With `wait`, waits until at least one has completed, if any
    /// are [pending](Disk::pending).
    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>);

    /// Lets this disk be dropped without waiting for writes in progress; their memory is then leaked. To be called if
    /// these writes may never complete. Later writes work as before.
    fn abandon(&mut self);

    /// Returns notes for the user on how the disk is written, for example that io_uring is refused: all notes so far,
    /// as a text without a full stop. Calls of `create` and `completed` may add notes.
    fn note(&self) -> Option<&str> {
        None
    }
}
