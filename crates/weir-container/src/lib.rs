//! Finds the network namespaces of containers and pods by the names that their engines know, and the owners of the
//! host's interfaces.
//!
//! | module | contents |
//! |---|---|
//! | [`docker`] | containers of Docker and podman, by requests to the engine's socket |
//! | [`pod`] | pods of Kubernetes, by files that the kubelet leaves on the node |
//! | [`interface`] | the owners of the host's taps and veths |
//! | [`vm`] | taps of virtual machines, as they come and go |
//! | [`api`] | one request to a container engine |
#![forbid(unsafe_code)]

pub mod api;
pub mod docker;
pub mod interface;
pub mod limits;
pub mod pod;
mod process;
pub mod vm;
