//! The host's side of a virtual machine's feeds: the memory that the guest maps, and QEMU, which plugs it in.
//!
//! | module | contents |
//! |---|---|
//! | [`memory`] | the region and the words of a guest (`weir-region`) as memory that QEMU maps |
//! | [`qmp`] | QEMU's monitor: commands, answers, events |
//! | [`hotplug`] | plugs both in as `ivshmem-plain` devices, and unplugs them |
//! | [`libvirt`] | the monitor of a libvirt domain |
//! | [`error`] | the errors |
//! | [`limits`] | limits of this crate |
//!
//! QEMU and the guest are not trusted. Their answers, and their changes of the words, can cost this process only a
//! limited amount of time and memory. QEMU can only read the region, because of its seals.

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
