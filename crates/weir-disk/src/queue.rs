//! A queue of writes: a recorder's requests to a disk. [`open`](crate::open) opens a real disk; tests use
//! one that fails on command.

use std::io;
use std::path::Path;
use std::sync::Arc;

use weir_ring::Mapping;

use crate::Buffer;
use crate::files::Files;

/// The bytes of a write, kept until the write has completed.
pub enum Bytes {
    /// The filled part of a buffer. Its length is a multiple of
    /// [`ALIGN_BYTES`](crate::buffer::ALIGN_BYTES).
    Own(Buffer),
    /// A part of a ring, which the ring's writer may overwrite meanwhile. The requester must check
    /// afterwards that it did not.
    Ring {
        /// The ring's memory.
        memory: Arc<Mapping>,
        /// Offset of the first byte.
        at: usize,
        /// Number of bytes.
        bytes: usize,
    },
    /// No bytes: this many bytes of the file are allocated, and read as zeros until they are written.
    /// Writes within them do not extend the file; file systems serialize writes that extend it. If the file
    /// system does not support this, the request fails, and the file is unchanged.
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
    /// Its memory, for reuse.
    pub bytes: Bytes,
}

/// The disk of a directory, as a recorder uses it.
pub trait Disk: Send + 'static {
    /// An open file of this disk. It must not be dropped before its writes have completed.
    type File: Send + Sync + 'static;
    /// Requests about whole files.
    type Files: Files<File = Self::File>;

    /// Requests about whole files, on any thread.
    fn files(&self) -> Self::Files;

    /// Creates a file, which must not exist, with the permissions `mode` (less the umask).
    ///
    /// # Errors
    /// The kernel's error.
    fn create(&mut self, path: &Path, mode: u32) -> io::Result<Arc<Self::File>>;

    /// Starts a write at byte `at` of a file. When this returns, the write is in progress, or its failure
    /// is among the completed writes. If [`WRITES_MAX`](crate::limits::WRITES_MAX) writes are in progress,
    /// waits for one to complete. Concurrent writes complete in any order, so they must not overlap.
    ///
    /// # Panics
    /// If `at` or the number of bytes is not a multiple of [`ALIGN_BYTES`](crate::buffer::ALIGN_BYTES), or
    /// there are no bytes.
    fn write(&mut self, file: &Arc<Self::File>, at: u64, bytes: Bytes, ticket: Ticket);

    /// Number of writes that were started and that [`completed`](Disk::completed) has not returned yet.
    fn pending(&self) -> usize;

    /// Appends the completed writes to `out`, in any order. With `wait`, waits for at least one, if any are
    /// [pending](Disk::pending).
    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>);

    /// Call if writes in progress may never complete: dropping this disk then does not wait for them, and
    /// leaks their memory. Later writes work as before.
    fn abandon(&mut self);

    /// Notes for the user on how it writes, such as that io_uring is refused: all notes so far, as a text
    /// without a full stop. Calls of `create` and `completed` may add notes.
    fn note(&self) -> Option<&str> {
        None
    }
}
