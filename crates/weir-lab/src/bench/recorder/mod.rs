//! `weir capture --write DIR/`: as fast as the disk, beside `fio` on the same file system.
//!
//! | module | what it holds |
//! |---|---|
//! | `place` | the directory: on a disk, with room, at rest |
//! | `fio` | what the disk takes |
//! | `run` | a run of the recorder: what it says, what is in its files, its threads' time |
//! | `disk` | frames from memory to the disk |
//! | [`sizing`] | `weir lab disk`: disk, capture, both, and what a link would take |

mod disk;
mod fio;
mod place;
mod run;
pub mod sizing;

pub(super) use disk::{SECTION, bars, condition, measure};
