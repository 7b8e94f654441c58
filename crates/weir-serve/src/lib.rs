//! Captures once, and shares the frames with other processes: the application `capture` of a [`weir_plug::Server`].
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the daemon's file: sources, and who may open them |
//! | [`daemon`] | the sources, which are open as long as clients read them |
//! | [`resolved`] | a source of the file in the form that engines need, and its filter |
//! | [`application`] | the methods of `capture`, and the cleanup when a client disconnects |
//! | `guests` | virtual machines that read feeds: their ports, machines, and the copies of feeds in their memory |
//! | [`reader`] | a feed of one client |
//! | [`metrics`] | the status as metrics for Prometheus |
//! | [`rights`] | which clients could write into the rings of a BPF program |
//! | [`private`] | paths that no other user can replace |
//! | [`user`] | clients that share the limits of one user |
//! | [`usage`] | the resources that each client uses |
//! | [`limits`] | limits of clients, guests and the daemon |
#![forbid(unsafe_code)]

pub mod application;
mod blocking;
mod board;
mod check;
mod closing;
pub mod config;
pub mod daemon;
mod feed_request;
mod guests;
mod journal;
pub mod limits;
pub mod metrics;
mod missing;
mod moved;
mod names;
pub mod private;
pub mod reader;
mod refusal;
mod reload;
pub mod resolved;
pub mod rights;
mod slots;
mod status;
pub mod usage;
pub mod user;

pub use application::Capture;
pub use config::{Config, ConfigError};
pub use daemon::Daemon;
pub use resolved::Resolved;
