//! Large writes to a disk, several at a time, out of ring memory without a copy where the kernel allows that.
//!
//! | module | what it holds |
//! |---|---|
//! | [`queue`] | what a queue of writes is |
//! | [`buffer`] | memory of one's own that direct writes take |
#![deny(unsafe_code)]

pub mod buffer;
pub mod queue;

pub use buffer::Buffer;
pub use queue::{Bytes, Completed, Disk, Space, Ticket};
