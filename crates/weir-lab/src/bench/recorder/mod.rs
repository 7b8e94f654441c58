//! `weir capture --write DIR/` at the rate of the disk, beside `fio` on the same file system.
//!
//! | module | contents |
//! |---|---|
//! | `place` | the directory: on a disk, with enough space, and idle |
//! | `fio` | the rate of the disk |
//! | `run` | a run of the recorder: its report, the frames in its files, the CPU time of its threads |
//! | `disk` | generated frames to the disk |
//! | `live` | frames from a link to the disk, beside other tools |
//! | `store` | extraction of one flow from recorded files |
//! | [`sizing`] | `weir lab disk`: measures the disk, the capture and both; computes the needs of a link |

mod disk;
mod fio;
pub(super) mod live;
mod place;
mod run;
pub mod sizing;
pub(super) mod store;

pub(super) use disk::{SECTION, bars, condition, measure};
