//! Places of rings in larger memory: in a part of a descriptor, or in a region.

use serde::{Deserialize, Serialize};
use weir_region::Place;

/// A part of a descriptor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// A place in the region that a guest shares with the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InRegion {
    /// The token by which the guest finds its devices: 32 hexadecimal digits.
    pub token: String,
    /// Size of the whole region.
    pub region_bytes: u64,
    /// The place in the region.
    pub place: Place,
}
