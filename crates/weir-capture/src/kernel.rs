//! Access to the kernel: interfaces, hooks, network namespaces, memory limits, the owner of an XDP hook, RCU.

pub mod hooks;
pub mod interface;
mod map_options;
pub mod memory_limit;
pub mod netns;
mod private_folder;
pub mod rcu;
pub(crate) mod vlan;
pub mod xdp_owner;

pub(crate) use map_options::map_options;
pub use private_folder::PrivateFolder;
