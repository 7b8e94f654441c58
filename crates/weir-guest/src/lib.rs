//! Code for the inside of a virtual machine: finds the devices that the host plugs in, opens the rings in them, and
//! wakes readers.
//!
//! The host writes rings into a *region*, which the guest can only read, and reads *words*, which only the guest writes
//! (`weir-region`). Applications in the guest read these rings like any others (`weir-ring`). This crate has the parts
//! that the broker needs to serve these applications.
//!
//! | module | what it holds |
//! |---|---|
//! | [`devices`] | the two PCI devices: found, mapped, measured |
//! | [`words`] | the page that the guest writes |
//! | [`bells`] | sleepers in the guest: thresholds for the host, wake-ups by its bells |
//! | [`arming`] | the algorithm behind it, which loom runs, too |
//! | [`limits`] | limits of this crate |

pub mod arming;
#[cfg(not(loom))]
pub mod bells;
#[cfg(not(loom))]
pub mod devices;
#[cfg(not(loom))]
mod error;
pub mod limits;
#[cfg(all(test, not(loom)))]
mod testing;
#[cfg(not(loom))]
pub mod words;

#[cfg(not(loom))]
pub use bells::{BellId, Bells};
#[cfg(not(loom))]
pub use devices::{Bandwidth, Devices};
#[cfg(not(loom))]
pub use error::{DeviceError, GuestError, SeenDevice};
#[cfg(not(loom))]
pub use words::Words;
