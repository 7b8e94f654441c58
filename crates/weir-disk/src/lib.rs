//! Writes large blocks to a disk, several at a time. Copies nothing from ring memory if the kernel allows that.
//!
//! | module | contents |
//! |---|---|
//! | [`queue`] | the trait: a queue of writes |
//! | [`buffer`] | buffers for direct writes |
//! | `any` | [`open`]: the best of the two kinds of disks that the kernel supports |
//! | [`uring`] | writes by io_uring |
//! | [`plain`] | writes by `pwrite` on threads, if io_uring is refused |
//! | [`file`](mod@file) | a file: direct, or through the page cache if direct writes are refused |
//! | `memory` | page-aligned memory, in huge pages if it is large |
//! | `spare` | buffers for reuse |
//! | [`files`] | requests for whole files, on any thread |
//! | `write` | the state of a write: continued, copied or repeated if necessary |
//! | `directory` | renaming files, space of file systems |
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
