//! Protocols above TCP and UDP.

pub mod dns;
