//! The host's side of a virtual machine's feeds: the memory that the guest maps, and QEMU, which plugs it in.
//!
//! | module | what it holds |
//! |---|---|
//! | [`memory`] | the region and the words of a guest (`weir-region`) as memory that QEMU maps |
//! | [`qmp`] | QEMU's monitor: commands, answers, events |
//! | [`hotplug`] | both as `ivshmem-plain` devices, plugged in and unplugged |
//! | [`libvirt`] | the same monitor, of a domain of libvirt's |
//! | [`error`] | what can go wrong |
//! | [`limits`] | limits of this crate |
//!
//! QEMU and the guest are not trusted. Whatever they answer, and whatever they do to the words, costs this process a
//! bounded time and memory. QEMU can only read the region, because of its seals.

pub mod error;
pub mod hotplug;
pub mod libvirt;
pub mod limits;
pub mod memory;
pub mod qmp;

pub use error::VmError;
pub use hotplug::{Buses, Plugged, find_buses, find_plugged, plug, plug_into, unplug};
pub use libvirt::{Domain, Virsh, VirshOutput};
pub use memory::{GuestMemory, TakenRing};
pub use qmp::{Event, Monitor, Qmp};
pub use weir_ring::memory::Pages;
