//! Opens feeds of a daemon (`weir serve`) and reads them from shared memory. Needs no privileges. Links no C code, so
//! it can be part of a static binary.
//!
//! | module | contents |
//! |---|---|
//! | [`protocol`] | the messages of the application `capture` |
//! | [`connection`] | a connection to a daemon; feeds are opened on it |
//! | [`remote_feed`] | an open feed: its rings and wake-ups, changes, closing |
//! | [`feed`] | a feed for one consumer |
//! | [`feed_reader`] | a feed for a caller that asks for frames, such as a library: it reads on after restarts of the
//! daemon and after forks |
//! | [`region`] | rings in a region that this machine shares with its host |
//! | [`address`] | names of sources |
//! | [`ending`] | the end of a feed |
//! | [`status`] | the open feeds of a daemon, and its clients |
//! | [`limits`] | the longest name of a feed, and the times for which entries can be blocked |
#![forbid(unsafe_code)]

pub mod address;
mod caller;
pub mod connection;
pub mod ending;
pub mod error;
pub mod feed;
pub mod feed_reader;
mod guests;
pub mod limits;
mod lock;
pub mod protocol;
pub mod region;
pub mod remote_feed;
mod statistics;
pub mod status;

pub use address::{Address, SOCKET, socket_path};
pub use connection::Connection;
pub use ending::EndReason;
pub use error::{ClientError, error_text, reason_text};
pub use feed::{FeedSource, OpenFeed};
pub use feed_reader::{FeedReader, Statistics};
pub use remote_feed::RemoteFeed;
