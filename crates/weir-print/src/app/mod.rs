//! What stands above TCP and UDP.

pub mod dns;
