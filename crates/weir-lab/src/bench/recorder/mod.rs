//! `weir capture --write DIR/`: as fast as the disk, beside `fio` on the same file system.
//!
//! | module | what it holds |
//! |---|---|
//! | `place` | the directory: on a disk, with room, at rest |
//! | `fio` | the rate of the disk |
//! | `run` | a run of the recorder: what it says, what is in its files, its threads' time |
//! | `disk` | frames from memory to the disk |
//! | `live` | frames from a link to the disk, beside other tools |
//! | `store` | one flow out of recorded files |
//! | [`sizing`] | `weir lab disk`: disk, capture, both, and what a link would take |

mod disk;
mod fio;
pub(super) mod live;
mod place;
mod run;
pub mod sizing;
pub(super) mod store;

pub(super) use disk::{SECTION, bars, condition, measure};
