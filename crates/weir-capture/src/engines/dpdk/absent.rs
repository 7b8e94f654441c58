//! The engine `dpdk` in builds without it: only its declaration.

pub(crate) mod declaration;
