//! What the kernel says and takes: interfaces, network namespaces, memory limits, the owner of an XDP hook, RCU.

pub mod interface;
pub mod memory_limit;
pub mod netns;
mod private_folder;
pub(crate) mod rcu;
pub(crate) mod vlan;
pub mod xdp_owner;

pub use private_folder::PrivateFolder;
