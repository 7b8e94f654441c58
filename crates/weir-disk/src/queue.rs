//! A queue of writes: a recorder's requests to a disk. [`open`](crate::open) gives a real one. Tests use one that
//! fails on command.

use std::io;
use std::path::Path;
use std::sync::Arc;

use weir_ring::Mapping;

use crate::Buffer;
use crate::files::Files;

/// Source of the bytes of a write, kept until the write has completed.
pub enum Bytes {
    /// The filled part of a buffer. Its length is a multiple of [`ALIGN_BYTES`](crate::buffer::ALIGN_BYTES).
    Own(Buffer),
    /// A part of a ring. The ring's writer may overwrite it meanwhile, so the requester checks it after the write.
    Ring {
        /// The ring's memory.
        memory: Arc<Mapping>,
        /// Offset of the bytes in it.
        at: usize,
        /// Number of bytes.
        bytes: usize,
    },
    /// No bytes: a part of the file is allocated, and reads as zeros until it is written. Writes there do not make the
    /// file longer; file systems carry out writes that do one after the other. If the file system cannot
    /// preallocate, the request fails, and the file is unchanged.
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
    /// Success if all of it is written. Short writes were continued.
    pub result: io::Result<()>,
    /// Its memory, for reuse.
    pub bytes: Bytes,
}

/// The disk of one or more directories, as a recorder uses it.
pub trait Disk: Send + 'static {
    /// An open file. Its writes have completed before it is dropped.
    type File: Send + Sync + 'static;
    /// Requests about whole files.
    type Files: Files<File = Self::File>;

    /// Requests about whole files, on any thread.
    fn files(&self) -> Self::Files;

    /// Makes a new file with the permissions `mode`, less the umask.
    ///
    /// # Errors
    /// The kernel's error; `EEXIST` if it exists.
    fn create(&mut self, path: &Path, mode: u32) -> io::Result<Arc<Self::File>>;

    /// Requests a write at byte `at` of a file. When this returns, the write is pending, or has completed with an
    /// error. If [`WRITES_MAX`](crate::limits::WRITES_MAX) writes are pending, this waits until one has completed.
    /// Pending writes complete in any order, so they must not overlap in the file.
    ///
    /// # Panics
    /// If `at` or the number of bytes is not a multiple of [`ALIGN_BYTES`](crate::buffer::ALIGN_BYTES), or there are
    /// no bytes.
    fn write(&mut self, file: &Arc<Self::File>, at: u64, bytes: Bytes, ticket: Ticket);

    /// Number of requested writes that [`completed`](Disk::completed) has not returned yet.
    fn pending(&self) -> usize;

    /// Appends the completed writes to `out`, in any order. With `wait`, it waits for at least one if any are
    /// [pending](Disk::pending).
    fn completed(&mut self, wait: bool, out: &mut Vec<Completed>);

    /// Declares that pending writes may never be answered: dropping this disk then waits for none of them, and leaks
    /// their memory. Later requests are carried out as before.
    fn abandon(&mut self);

    /// Notes for the user on how it writes, such as that io_uring is refused: all notes so far, as one text without a
    /// full stop. `create` and `completed` may add to it.
    fn note(&self) -> Option<&str> {
        None
    }
}
