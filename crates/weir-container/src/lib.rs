//! Network namespaces of containers and pods, by the names that their engines know; and who uses an interface of the
//! host.
//!
//! | module | what it has |
//! |---|---|
//! | [`docker`] | containers of Docker and podman, asked for over the engine's socket |
//! | [`pod`] | pods of Kubernetes, found by files that the kubelet leaves on the node |
//! | [`interface`] | whose frames those of taps and veths of the host are |
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
