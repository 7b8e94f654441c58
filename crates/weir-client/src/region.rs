//! Rings in a region that this machine shares with its host, instead of in descriptors.

use std::error::Error;

use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring};

use crate::protocol::InRegion;

/// Why a ring of the region cannot be opened, or its reader cannot be woken.
pub type RegionError = Box<dyn Error + Send + Sync>;

/// Where a connection without descriptors finds rings, and who wakes their readers: a guest's devices.
pub trait Region: Send + Sync {
    /// The ring that the host says is there.
    ///
    /// # Errors
    /// The devices are not there, or their contents are no ring.
    fn ring(&self, at: &InRegion) -> Result<Ring<Mapping>, RegionError>;

    /// Wakes a reader of it from here on; returns a number for that.
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

    /// Does not wake it any more.
    fn detach(&self, number: u64);

    /// Nobody reads the ring any more. When this returns, nothing of it is mapped here: the host may give its place to
    /// another feed, or take the devices away.
    fn let_go(&self, at: &InRegion);
}
