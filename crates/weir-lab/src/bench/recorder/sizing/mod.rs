//! `weir lab disk DIR`: measures the rate of a disk and of these CPUs, and computes from it what a link needs.
//!
//! | module | contents |
//! |---|---|
//! | `measure` | the rounds: disk only, capture only, both |
//! | `raw` | sequential direct writes by `weir-disk` alone |
//! | `guest` | the same measurements in a guest, on virtio-blk |
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
    /// An existing directory on a disk. A directory is created in it, and deleted at the end.
    pub directory: PathBuf,
    /// A folder with a kernel, to measure in a guest as well.
    pub guest_kernel: Option<PathBuf>,
    /// Rounds of every measurement.
    pub rounds: u32,
    /// Length of every measurement, in seconds.
    pub seconds: f64,
    /// Sizes of a write for the disk alone, in bytes: multiples of 4096.
    pub block_bytes: Vec<u64>,
    /// Numbers of drives for which the fastest link that they can record is computed.
    pub drives: Vec<u32>,
}
