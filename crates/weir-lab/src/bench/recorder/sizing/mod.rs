//! `weir lab disk DIR`: measures the rate of a disk and these CPUs, and computes the needs of a
//! link from it.
//!
//! | module | contents |
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
    /// An existing directory on a disk. A new directory is made in it, and deleted at the end.
    pub directory: PathBuf,
    /// A folder with a kernel, to measure in a guest as well.
    pub guest_kernel: Option<PathBuf>,
    /// Rounds of every measurement.
    pub rounds: u32,
    /// Seconds of every measurement.
    pub seconds: f64,
    /// Sizes of a write for the disk alone, bytes: multiples of 4096.
    pub block_bytes: Vec<u64>,
    /// Numbers of drives for which the link that they hold is computed.
    pub drives: Vec<u32>,
}
