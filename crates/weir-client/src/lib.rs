//! Opens feeds of a daemon (`weir serve`) and reads them from shared memory, without rights. No C: it links into a
//! static binary.
//!
//! | module | what it has |
//! |---|---|
//! | [`protocol`] | the messages of the application `capture` |
//! | [`connection`] | a connection to a daemon; feeds are opened on it |
//! | [`feed`] | an open feed: what a consumer reads, and how it is changed and closed |
#![forbid(unsafe_code)]

mod caller;
mod channel;
pub mod connection;
pub mod error;
pub mod feed;
pub mod protocol;

pub use connection::Connection;
pub use error::ClientError;
pub use feed::{FeedSource, OpenFeed};

/// Where a daemon listens unless told otherwise.
pub const SOCKET: &str = "/run/weir/weir.sock";
