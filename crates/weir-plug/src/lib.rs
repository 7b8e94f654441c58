//! The general layer between a daemon and its clients: applications register with a [`Server`], exchange messages with
//! their peers, transfer memory, and signal. It contains nothing about capture.
//!
//! | module | contents |
//! |---|---|
//! | [`message`] | JSON-RPC 2.0: requests, responses, notifications, error codes |
//! | [`framing`] | messages in a byte stream: a length before each message |
//! | [`descriptors`] | descriptors that are sent with a message, on Unix sockets |
//! | [`transport`] | byte streams that carry messages |
//! | [`port`] | a transport over a serial port of a virtual machine |
//! | [`vsock`] | a connection from a virtual machine to its host without a port |
//! | [`wire`] | sends and receives a message with its descriptors |
//! | [`socket`] | a listening Unix socket at a path |
//! | [`application`] | the interface that an application implements |
//! | [`server`] | connections, their limits, and their end |
//! | [`client`] | calls with a time limit; notifications |
//! | [`limits`] | sizes, counts and times |
//!
//! `docs/protocol.md` specifies the protocol.
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

/// The version of the protocol that this crate implements.
pub const VERSION: u64 = 1;
