//! The general layer between a daemon and its clients: applications register with a [`Server`], exchange messages with
//! their peers, hand over memory and signal. It knows nothing of capture.
//!
//! | module | what it has |
//! |---|---|
//! | [`message`] | JSON-RPC 2.0: requests, responses, notifications, error codes |
//! | [`framing`] | each message behind its length |
//! | [`descriptors`] | descriptors beside a message, on Unix sockets |
//! | [`transport`] | byte streams that messages travel on |
//! | [`port`] | a serial port of a virtual machine as such a stream |
//! | [`vsock`] | its way to the host without a port |
//! | [`wire`] | a message and its descriptors, sent and received whole |
//! | [`socket`] | a listening Unix socket at a path |
//! | [`application`] | what an application implements |
//! | [`server`] | connections, their limits, and their end |
//! | [`client`] | calls with a time limit; notifications |
//! | [`limits`] | sizes, counts and times |
//!
//! The protocol is written down in `docs/protocol.md`.
#![deny(unsafe_code)]

pub mod application;
pub mod client;
mod credentials;
pub mod descriptors;
pub mod error;
pub mod framing;
pub mod limits;
pub mod message;
pub mod pace;
pub mod peer;
pub mod port;
pub mod server;
pub mod socket;
pub mod transport;
pub mod vsock;
pub mod wire;

pub use application::{Answer, Application, Session};
pub use client::{Client, Incoming};
pub use credentials::{Credentials, Who};
pub use error::PlugError;
pub use message::{Message, RpcError};
pub use peer::Peer;
pub use server::{Server, ServerLimits, Serving};
pub use transport::{Transport, UnixTransport};

/// The version of the protocol that this crate speaks.
pub const VERSION: u64 = 1;
