//! Status of a daemon: its open feeds, their clients, and the counts of frames. It is the answer to `capture.status`.
//!
//! A client sees the feeds of its own user; root and the user of the daemon see all feeds.

use serde::{Deserialize, Serialize};

use crate::protocol::{Ledger, Owner};

/// Status of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's name and version.
    pub daemon: String,
    /// The sources that the client may open, by name.
    pub sources: Vec<SourceStatus>,
    /// The rings of the open sources.
    pub feeds: Vec<FeedStatus>,
    /// The clients' feeds, in the order in which they were opened.
    pub clients: Vec<ClientStatus>,
}

/// Status of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStatus {
    /// The name of the source.
    pub source: String,
    /// A client reads the source.
    pub is_open: bool,
    /// The source, as `weir capture` names it.
    pub captures: String,
    /// The engine that takes its frames; empty while it is closed.
    pub engine: String,
    /// The place in the kernel where frames are captured.
    pub hook: Option<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Owner of the frames, for an open source in another network namespace.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// The reason why nobody can open the source now, as far as the daemon knows. Only for a closed source.
    #[serde(default)]
    pub unavailable: Option<String>,
}

/// Rings that one or more clients read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedStatus {
    /// The daemon's number for the rings.
    pub key: u64,
    /// The source of the frames.
    pub source: String,
    /// The filter expression; an empty one takes all frames. For a filter in bytecode, only its length.
    pub filter: String,
    /// Number of rings.
    pub rings: usize,
    /// Number of clients' feeds that read the rings.
    pub readers: usize,
    /// Counts of the frames since the rings were created.
    pub ledger: Option<Ledger>,
}

/// A feed of one client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The guest to which the feed belongs; then there is no process on the host.
    #[serde(default)]
    pub guest: Option<String>,
    /// User id of the process that connected.
    pub uid: u32,
    /// Group id of the process.
    pub gid: u32,
    /// Process id, in the daemon's PID namespace.
    pub pid: i32,
    /// The daemon's number for the connection.
    #[serde(default)]
    pub connection: u64,
    /// The client's number for the feed.
    pub number: u64,
    /// The name of the feed, if it was opened with one.
    #[serde(default)]
    pub name: Option<String>,
    /// The daemon's number for the rings that the feed reads.
    pub key: u64,
    /// The source of the frames.
    pub source: String,
    /// The filter expression; an empty one takes all frames. For a filter in bytecode, only its length.
    pub filter: String,
    /// Seconds since the feed was opened.
    pub seconds: u64,
    /// The client has closed the feed, or its source has ended. Its rings may still be read.
    pub is_closed: bool,
    /// Number of consumers that the rings wake.
    pub consumers: usize,
    /// Number of frames that the slowest of these consumers has not read yet, by the position that it reported at most
    /// 0.1 s ago; `None` without consumers.
    pub lag: Option<u64>,
    /// Number of these frames that were overwritten since the consumer reported its position. It may have read them
    /// before.
    #[serde(default)]
    pub lapped: Option<u64>,
    /// Counts of the feed's frames since it was opened.
    pub ledger: Option<Ledger>,
}
