//! Network namespaces of containers and pods, by the names that their engines know.
//!
//! | module | what it has |
//! |---|---|
//! | [`docker`] | containers of Docker and podman, asked for over the engine's socket |
//! | [`pod`] | pods of Kubernetes, found by what the kubelet leaves on the node |
//! | [`api`] | one request to a container engine |
#![forbid(unsafe_code)]

pub mod api;
pub mod docker;
pub mod limits;
pub mod pod;
