//! Frames to files: rings merged by time, and the file that takes them.
//!
//! | module | what it does |
//! |---|---|
//! | [`merge`] | several rings read as one stream in timestamp order |
//! | [`file`] | a pcapng file or pipe that stays readable whatever happens |
#![forbid(unsafe_code)]

mod counted;
pub mod file;
pub mod merge;
mod stalled;

pub use counted::{Count, write_counted};
pub use file::{FileError, FileWriter};
pub use merge::{Merge, Turn};
pub use stalled::Stalled;
