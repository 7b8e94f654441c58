//! The index of a recorded file: a small file that is written during recording. With an index, readers skip most data
//! that is not wanted. The result of a search is the same with and without an index.
//!
//! A recorded file consists of *pieces*: whole pcapng blocks that were written at once (a block of a ring, or less).
//! Each piece begins and ends at a multiple of 4 KiB. The index has an entry for each piece that is known to be whole.

pub mod file;
pub mod piece;
pub mod scan;
pub mod set;

pub use file::{Index, IndexError, Writer, read};
pub use piece::Piece;
pub use scan::{HEAD_BYTES, Scan};
pub use set::Set;
