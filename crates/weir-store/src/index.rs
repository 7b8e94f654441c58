//! The index of a recorded file: a small file, made while recording. It serves to skip most data that is not wanted,
//! and is never needed for a right answer.
//!
//! A recorded file is *pieces* end to end: whole pcapng blocks, as many as were written at once (a block of a ring, or
//! less), each beginning and ending at a multiple of 4 KiB. The index of a file has an entry for each piece that is
//! known to be good, in the order of the file.

pub mod file;
pub mod piece;
pub mod scan;
pub mod set;

pub use file::{Index, IndexError, Writer, read};
pub use piece::Piece;
pub use scan::{HEAD_BYTES, Scan};
pub use set::Set;
