//! Frames to files.
//!
//! | module | what it does |
//! |---|---|
//! | [`file`] | a pcapng file or pipe that stays readable whatever happens |
#![forbid(unsafe_code)]

pub mod file;

pub use file::{FileError, FileWriter};
