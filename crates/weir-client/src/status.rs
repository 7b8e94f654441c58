//! Status of a daemon: its open feeds, their clients, and the account of the frames. It is the
//! answer to `capture.status`.
//!
//! A client sees its own user's feeds; root, and the user that the daemon runs as, see everybody's.

use serde::{Deserialize, Serialize};

use crate::protocol::{Ledger, Owner};

/// Status of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's name and version.
    pub daemon: String,
    /// The sources that the client may open, by name.
    pub sources: Vec<SourceStatus>,
    /// The rings of those that are open.
    pub feeds: Vec<FeedStatus>,
    /// The clients' feeds, in the order in which they were opened.
    pub clients: Vec<ClientStatus>,
}

/// A source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Its name.
    pub source: String,
    /// Somebody reads it.
    pub is_open: bool,
    /// The source, as `weir capture` names it.
    pub captures: String,
    /// The engine that takes its frames; empty while it is closed.
    pub engine: String,
    /// Where in the kernel.
    pub hook: Option<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Owner of the frames, for an open source in another network namespace.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Why nobody can open it now, for a source that is closed, as far as the daemon knows.
    #[serde(default)]
    pub unavailable: Option<String>,
}

/// Rings that one or more clients read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedStatus {
    /// The daemon's number for them.
    pub key: u64,
    /// Of this source.
    pub source: String,
    /// Which frames; empty takes all. Of bytecode only its length.
    pub filter: String,
    /// How many rings.
    pub rings: usize,
    /// Clients' feeds that read them.
    pub readers: usize,
    /// Account of their frames since they were made.
    pub ledger: Option<Ledger>,
}

/// A feed of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The guest whose it is; no process of the host's, then.
    #[serde(default)]
    pub guest: Option<String>,
    /// User id of the process that connected.
    pub uid: u32,
    /// Its group id.
    pub gid: u32,
    /// Its process id, in the daemon's namespace.
    pub pid: i32,
    /// The daemon's number for the connection.
    #[serde(default)]
    pub connection: u64,
    /// The client's own number for the feed.
    pub number: u64,
    /// Its name, if it was opened with one.
    #[serde(default)]
    pub name: Option<String>,
    /// The rings that it reads.
    pub key: u64,
    /// Of this source.
    pub source: String,
    /// Which frames; empty takes all. Of bytecode only its length.
    pub filter: String,
    /// Seconds since it was opened.
    pub seconds: u64,
    /// It was closed, by the client or because its source ended, and its rings may still be read.
    pub is_closed: bool,
    /// Consumers that the rings wake.
    pub consumers: usize,
    /// Frames before the slowest of those, as it says itself, at most 0.1 s ago; `None` without one.
    pub lag: Option<u64>,
    /// How many of those have been overwritten since the position that it last reported. It may have read them.
    #[serde(default)]
    pub lapped: Option<u64>,
    /// Account of its frames since it was opened.
    pub ledger: Option<Ledger>,
}
