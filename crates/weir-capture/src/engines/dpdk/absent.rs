//! The engine `dpdk` in builds without it: its declaration alone.

pub(crate) mod declaration;
