//! The messages of the application `capture`, as specified in `docs/protocol.md`. Those of its status: `status`.

mod guest;
mod place;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits::{BLOCK_TIME_MAX, BLOCK_TIME_MIN, FEED_NAME_MAX};
pub use guest::{Guest, GuestAttach, GuestDetach, GuestState};
pub use place::{InRegion, Part};

/// The application's name.
pub const APPLICATION: &str = "capture";

/// A notification to guests, without params: the daemon's file has changed, so the [`Source`]s may have changed.
pub const SOURCES_CHANGED: &str = "capture.sources_changed";

/// An error code: the feed shares its rings, so it cannot be changed, unlike one opened with [`own`](Open::own).
pub const SHARED: i32 = -32010;

/// An error code: the client's user has no feed of this name.
pub const NO_FEED: i32 = -32011;

/// Tells whether `name` is a valid name of a feed: 1 to [`FEED_NAME_MAX`] ASCII letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn is_feed_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= FEED_NAME_MAX && name.chars().all(fits)
}

/// Converts `expires_ms` to a duration.
///
/// # Errors
/// The time is too short or too long.
pub fn block_time(expires_ms: u64) -> Result<Duration, String> {
    let time = Duration::from_millis(expires_ms);
    let (shortest, longest) = (BLOCK_TIME_MIN.as_millis(), BLOCK_TIME_MAX.as_millis());
    if (BLOCK_TIME_MIN..=BLOCK_TIME_MAX).contains(&time) {
        Ok(time)
    } else {
        Err(format!("expires_ms is {shortest} to {longest}, not {expires_ms}"))
    }
}

/// Returns a time in milliseconds, as messages have it. A time that does not fit is above the limit anyway.
pub(crate) fn expires_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The direction of the frames of a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Received frames.
    In,
    /// Sent frames.
    Out,
    /// Received and sent frames.
    #[default]
    Both,
}

/// `capture.open`: a request to open a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// The client's number for the feed; no other feed of the connection has it.
    pub feed: u64,
    /// The source, as [`Source::source`] names it.
    pub source: String,
    /// The filter expression; an empty one takes all frames.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// Most bytes kept of a frame; default and upper limit: the snaplen of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// The direction of the frames.
    #[serde(default)]
    pub direction: Direction,
    /// `2/4`: the second of four shards by flow; `q2`: an RX queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// Takes one frame in this many; not together with `flows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<u32>,
    /// Takes one flow in this many, with all its frames; not together with `sample`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// The feed gets rings that no other feed shares, so it can be changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own: bool,
    /// The name by which other connections of the same user can change the feed ([`BlockNamed`]); several feeds may
    /// have the same name. A feed with a name has rings of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Open {
    /// Tells whether the feed gets rings that no other feed shares.
    #[must_use]
    pub fn has_own_rings(&self) -> bool {
        self.own || self.name.is_some()
    }
}

/// The answer to `capture.open`. The descriptors of the rings come with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The daemon's number for the rings; to a guest, its own number for the feed.
    pub key: u64,
    /// Ordinal of the feed's first frame in each ring. Earlier frames in shared rings belong only to other feeds.
    pub from: Vec<u64>,
    /// The pcap link type of the feed's frames.
    pub link_type: u16,
    /// The name of the capture engine; empty if it is not known.
    #[serde(default)]
    pub engine: String,
    /// The place in the kernel where frames are captured.
    #[serde(default)]
    pub hook: Option<String>,
    /// The reason why this engine was chosen.
    #[serde(default)]
    pub why: String,
    /// Notes for the user.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Owner of the frames, for a source in another network namespace, and for a tap or veth whose user was found.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// The place of each ring in its descriptor's memory, from a guest's broker, whose rings are all in one device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// For a guest, which gets no descriptors: the place of its only ring in the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<InRegion>,
}

/// The owner of a source's frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// `container`, `pod`, `vm`, `process` or `netns`.
    pub kind: String,
    /// The owner's name; of a pod `NAMESPACE/NAME`, of a process the name of its command.
    pub name: String,
    /// The id of a container, or of a pod.
    pub id: Option<String>,
    /// The image of a container.
    pub image: Option<String>,
    /// A process in the network namespace, or that of a virtual machine, by its ID in the daemon's PID namespace.
    pub pid: Option<u32>,
    /// The inode of the network namespace, which `lsns` shows; 0 if it was not determined.
    pub netns: u64,
}

/// `capture.attach`, with the wake page and the socket of a channel: the feed wakes the sleeper there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The client's number for the feed.
    pub feed: u64,
    /// The client's number for the sleeper; no other sleeper of the feed has it.
    pub sleeper: u64,
    /// The line of the wake page for the first ring; the other rings have the lines after it.
    pub first_line: usize,
}

/// `capture.detach`: the feed stops waking this sleeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// The client's number for the feed.
    pub feed: u64,
    /// The client's number for the sleeper.
    pub sleeper: u64,
}

/// `capture.ledger`, `capture.close`, `capture.let_go`: requests that only name a feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfFeed {
    /// The client's number for the feed.
    pub feed: u64,
}

/// The answer to `capture.close`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The daemon's number for the rings that were read last.
    pub key: u64,
    /// The rings are closed: the client reads them to their end, and the ledger is final.
    pub ended: bool,
    /// If others still read the rings: for each, the ordinal of the first frame that no longer belongs to the feed.
    #[serde(default)]
    pub until: Vec<u64>,
    /// Counts of the feed's frames since the client opened it; `None` if they could not be read.
    pub ledger: Option<Ledger>,
}

/// `capture.set_filter`. Refused with [`SHARED`] while others read the same rings. A guest never gets this error: its
/// feed moves to rings of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFilter {
    /// The client's number for the feed.
    pub feed: u64,
    /// The filter expression; an empty one takes all frames.
    pub filter: String,
}

/// `capture.block`. Refused under the same conditions as [`SetFilter`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// The client's number for the feed.
    pub feed: u64,
    /// Entries to block.
    #[serde(default)]
    pub add: Vec<String>,
    /// Entries to unblock.
    #[serde(default)]
    pub remove: Vec<String>,
    /// The time after which the entries of `add` expire, from now on; `None`: they do not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// `capture.block_named`: like [`Block`], for all feeds with a name that the client's user has on any connection. Root
/// and the daemon's user change the feeds of all users. All of these feeds change, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockNamed {
    /// The name that the feeds were opened with.
    pub name: String,
    /// Entries to block.
    #[serde(default)]
    pub add: Vec<String>,
    /// Entries to unblock.
    #[serde(default)]
    pub remove: Vec<String>,
    /// As in [`Block`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// The answer to `capture.block_named`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockChanged {
    /// Number of feeds that were changed.
    pub feeds: usize,
    /// Number of entries that are new, that expire later than before, or that were removed: that of the feed with the
    /// most changes.
    pub changed: usize,
    /// Number of entries that a feed blocks now: that of the feed with the most entries.
    pub entries: usize,
    /// The daemon's numbers of the feeds' rings. A number that was not there before belongs to a new feed, whose list
    /// was empty at first.
    #[serde(default)]
    pub keys: Vec<u64>,
}

/// `capture.blocked_named`: entries that the feeds of a name block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockedNamed {
    /// The name that the feeds were opened with.
    pub name: String,
}

/// The answer to `capture.blocked_named`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    /// Number of feeds that have the name.
    pub feeds: usize,
    /// Entries that all of them block.
    pub blocked: Vec<String>,
    /// Entries that only some of them block, and the number of those feeds.
    #[serde(default)]
    pub partly: BTreeMap<String, usize>,
    /// The remaining time of entries that expire; of several feeds, the longest.
    #[serde(default)]
    pub left_ms: BTreeMap<String, u64>,
    /// Number of entries that are left out because there are too many; of several feeds, the sum.
    #[serde(default)]
    pub omitted: usize,
}

/// A source that the client may open: `capture.sources` returns a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The name of the source for `capture.open`.
    pub source: String,
    /// Most bytes kept of a frame.
    pub snaplen: u32,
    /// The pcap link type of the source's frames; while the source is closed, the expected one.
    pub link_type: u16,
}

/// A feed of the client: `capture.ledger` returns one of them, `capture.statistics` a list of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// The client's number for the feed.
    pub feed: u64,
    /// The source of the feed.
    pub source: String,
    /// Counts of the feed's frames since the client opened it; `None` if they could not be read. While frames come, the
    /// counts are not of the same moment.
    pub ledger: Option<Ledger>,
}

/// `capture.gone`: the feed has ended, and its rings are closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// The client's number for the feed.
    pub feed: u64,
    /// The reason; `None` if the source has ended, or if the feed has `moved`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The feed continues in other rings, with the first frame that is not in the old ones. A process gets these rings
    /// if it opens the same feed again within 10 seconds, with the filter that it set last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved: bool,
}

/// Counts of all frames of a feed: `offered = filtered + blocked + sampled + captured + drops`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Frames that came to the hook.
    pub offered: u64,
    /// Frames that the filter, the part or the direction excluded.
    pub filtered: u64,
    /// Whether a filter excluded further frames that were not counted.
    pub filtered_uncounted: bool,
    /// Frames that the block list excluded.
    pub blocked: u64,
    /// Frames that sampling excluded.
    pub sampled: u64,
    /// Frames written into the rings.
    pub captured: u64,
    /// Bytes kept of the captured frames.
    pub kept_bytes: u64,
    /// Bytes of the captured frames on the wire.
    pub wire_bytes: u64,
    /// Captured frames that are offload super-frames.
    pub super_frames: u64,
    /// Lost frames, by the name of the place where they were lost.
    pub drops: BTreeMap<String, u64>,
    /// Frames that were lost before the hook, if known.
    pub missed_before: Option<u64>,
}

/// Adds the counts of another life of the feed, for a feed that was opened again. The sums saturate, because a hostile
/// daemon may send any numbers.
impl std::ops::AddAssign<&Ledger> for Ledger {
    fn add_assign(&mut self, more: &Ledger) {
        let counts = [
            (&mut self.offered, more.offered),
            (&mut self.filtered, more.filtered),
            (&mut self.blocked, more.blocked),
            (&mut self.sampled, more.sampled),
            (&mut self.captured, more.captured),
            (&mut self.kept_bytes, more.kept_bytes),
            (&mut self.wire_bytes, more.wire_bytes),
            (&mut self.super_frames, more.super_frames),
        ];
        for (own, more) in counts {
            *own = own.saturating_add(more);
        }
        self.filtered_uncounted = self.filtered_uncounted || more.filtered_uncounted;
        for (name, count) in &more.drops {
            let own = self.drops.entry(name.clone()).or_default();
            *own = own.saturating_add(*count);
        }
        if let Some(missed) = more.missed_before {
            let own = self.missed_before.get_or_insert(0);
            *own = own.saturating_add(missed);
        }
    }
}

impl From<&weir_ring::Ledger> for Ledger {
    fn from(ledger: &weir_ring::Ledger) -> Ledger {
        let drops = ledger.drops.iter();
        Ledger {
            offered: ledger.offered,
            filtered: ledger.filtered,
            filtered_uncounted: ledger.filtered_uncounted,
            blocked: ledger.blocked,
            sampled: ledger.sampled,
            captured: ledger.captured,
            kept_bytes: ledger.kept_bytes,
            wire_bytes: ledger.wire_bytes,
            super_frames: ledger.super_frames,
            drops: drops.map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            missed_before: ledger.missed_before,
        }
    }
}
