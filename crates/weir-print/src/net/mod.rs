//! Layer 3, and what stands directly on a link.

pub mod arp;
pub mod ipv4;
pub mod ipv6;
pub mod lldp;
pub mod mpls;
pub mod stp;
