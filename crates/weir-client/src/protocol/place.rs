//! Places of rings that are only a part of their descriptor.

use serde::{Deserialize, Serialize};
use weir_region::Place;

/// A part of a descriptor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// A place in the region that a guest shares with the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InRegion {
    /// By which the guest finds its devices: 32 hexadecimal digits.
    pub token: String,
    /// Bytes of the whole region.
    pub region_bytes: u64,
    /// Where in it.
    pub place: Place,
}
