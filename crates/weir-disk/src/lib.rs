//! Large writes to a disk, several at a time, out of ring memory without a copy where the kernel allows that.
//!
//! | module | what it holds |
//! |---|---|
//! | [`queue`] | the trait: a queue of writes |
//! | [`buffer`] | memory that is aligned for direct writes |
//! | `any` | [`open`]: io_uring where the kernel allows it, threads elsewhere |
//! | [`uring`] | writes by io_uring |
//! | [`plain`] | writes by `pwrite` on threads, where io_uring is refused |
//! | [`file`](mod@file) | a file: direct, or through the page cache where direct writes are refused |
//! | `memory` | page-aligned memory, in huge pages if it is large |
//! | `spare` | buffers that are kept for reuse |
//! | [`files`] | requests about whole files, on any thread |
//! | `write` | the state of one write: the rest after a short write, copies, retries |
//! | `directory` | renaming of files, size and mount options of a file system |
//! | `removed` | frees the space of a removed file step by step |
//! | `fake` | a disk for tests, which fails on command |
//! | [`limits`] | limits of this crate |
#![deny(unsafe_code)]

mod any;
pub mod buffer;
mod directory;
#[doc(hidden)]
pub mod fake;
pub mod file;
pub mod files;
pub mod limits;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
pub mod plain;
pub mod queue;
#[allow(unsafe_code)]
mod removed;
mod shared;
mod spare;
#[allow(unsafe_code)]
pub mod uring;
mod write;

pub use any::{AnyDisk, How, open};
pub use buffer::{ALIGN_BYTES, Buffer};
pub use directory::{Space, discards};
pub use file::DiskFile;
pub use files::{Files, KernelFiles};
pub use plain::Plain;
pub use queue::{Bytes, Completed, Disk, Ticket};
pub use spare::Spare;
pub use uring::Uring;
