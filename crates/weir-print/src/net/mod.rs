//! Protocols of layer 3, and others directly on the link layer.

pub mod arp;
pub mod ipv4;
pub mod ipv6;
pub mod lldp;
pub mod mpls;
pub mod stp;
