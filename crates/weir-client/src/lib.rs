//! Opens feeds of a daemon (`weir serve`) and reads them from shared memory, without rights. No C: it links into a
//! static binary.
//!
//! | module | what it has |
//! |---|---|
//! | [`protocol`] | the messages of the application `capture` |
//! | [`connection`] | a connection to a daemon; feeds are opened on it |
//! | [`remote_feed`] | an open feed: its rings, its wake-ups, and how it is changed and closed |
//! | [`feed`] | a feed as one consumer reads it |
//! | [`feed_reader`] | a feed whose caller asks for frames, for libraries: it survives daemons and forks |
//! | [`region`] | rings in a region that this machine shares with its host |
//! | [`address`] | names of sources |
//! | [`ending`] | the end of a feed |
//! | [`status`] | the open feeds of a daemon, and their clients |
//! | [`limits`] | how long names are, and how long entries are blocked |
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
