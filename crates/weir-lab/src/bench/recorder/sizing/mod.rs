//! `weir lab disk DIR`: what a disk and these CPUs hold, measured; and what a link would take, computed from it.
//!
//! | module | what it holds |
//! |---|---|
//! | `measure` | the rounds: disk only, capture only, both |
//! | `raw` | sequential direct writes by `weir-disk` alone |
//! | `guest` | the same in a guest, on virtio-blk |
//! | `computed` | drives and CPU cores for a link, from measured figures |
//! | `report` | the table and the JSON |

mod computed;
mod guest;
mod measure;
mod raw;
mod report;

use std::path::PathBuf;

pub use computed::{Link, Need};
pub use measure::run;
pub use report::Sizing;

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `weir` program.
    pub weir: PathBuf,
    /// An existing directory on a disk; a directory of its own is made in it and deleted.
    pub directory: PathBuf,
    /// A folder with a kernel, to measure in a guest, too.
    pub guest_kernel: Option<PathBuf>,
    /// Rounds of every measurement.
    pub rounds: u32,
    /// Seconds of every measurement.
    pub seconds: f64,
    /// Bytes of a write, of each series of the disk alone: multiples of 4096.
    pub block_bytes: Vec<u64>,
    /// Numbers of drives for which the link that they hold is computed.
    pub drives: Vec<u32>,
}
