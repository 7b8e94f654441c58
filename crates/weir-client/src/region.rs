//! Rings in a region that this machine shares with its host. Without a region, rings come as descriptors.

use std::error::Error;

use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring};

use crate::protocol::InRegion;

/// The reason why a ring of the region cannot be opened, or its reader cannot be woken.
pub type RegionError = Box<dyn Error + Send + Sync>;

/// A guest's devices: they contain the rings of a connection without descriptors, and wake the readers of these rings.
pub trait Region: Send + Sync {
    /// Opens the ring at the place that the host has named.
    ///
    /// # Errors
    /// The devices are not there, or their contents are not a ring.
    fn ring(&self, at: &InRegion) -> Result<Ring<Mapping>, RegionError>;

    /// Makes the ring wake the reader behind `waker` from now on. Returns a number for [`detach`](Region::detach).
    ///
    /// # Errors
    /// The devices are not there any more.
    fn attach(
        &self,
        at: &InRegion,
        ring: &Ring<Mapping>,
        waker: Waker,
        first_line: usize,
    ) -> Result<u64, RegionError>;

    /// Stops waking the reader that has this number.
    fn detach(&self, number: u64);

    /// Releases a ring that nobody reads any more. When this returns, the ring is not mapped in this process: the host
    /// may give its place to another feed, or take the devices away.
    fn let_go(&self, at: &InRegion);
}
