//! The messages of the application `capture`, as `docs/protocol.md` writes them down.

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

/// A notification to guests, without params: the daemon's file has changed, so [`Source`]s may have.
pub const SOURCES_CHANGED: &str = "capture.sources_changed";

/// The code of an error: the feed shares its rings with others, so it cannot be changed. One that was opened as
/// [`own`](Open::own) can.
pub const SHARED: i32 = -32010;

/// The code of an error: the client's user has no feed of this name.
pub const NO_FEED: i32 = -32011;

/// Whether feeds can have this name: 1 to [`FEED_NAME_MAX`] letters and digits of ASCII, `-`, `_` and `.`.
#[must_use]
pub fn is_feed_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= FEED_NAME_MAX && name.chars().all(fits)
}

/// The time that `expires_ms` says.
///
/// # Errors
/// It is too short, or too long.
pub fn block_time(expires_ms: u64) -> Result<Duration, String> {
    let time = Duration::from_millis(expires_ms);
    let (shortest, longest) = (BLOCK_TIME_MIN.as_millis(), BLOCK_TIME_MAX.as_millis());
    if (BLOCK_TIME_MIN..=BLOCK_TIME_MAX).contains(&time) {
        Ok(time)
    } else {
        Err(format!("expires_ms is {shortest} to {longest}, not {expires_ms}"))
    }
}

/// A time as messages have it. One that is too long for that is too long anyhow.
pub(crate) fn expires_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Frames of which direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
    /// Both.
    #[default]
    Both,
}

/// `capture.open`: a feed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Open {
    /// The client's number for the feed; no other feed of the connection has it.
    pub feed: u64,
    /// The source, as [`Source::source`] names it.
    pub source: String,
    /// Which frames; empty takes all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub filter: String,
    /// Most bytes kept of a frame; default and largest value: the source's ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// Which way they go.
    #[serde(default)]
    pub direction: Direction,
    /// `2/4`: the second of four shards by flow; `q2`: an RX queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// One frame of so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<u32>,
    /// All frames of one flow of so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u32>,
    /// It has rings that no other feed shares, so it can be changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own: bool,
    /// By which other connections of the same user change it ([`BlockNamed`]); several feeds may have the same. With a
    /// name it has rings of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl Open {
    /// Whether the feed has rings that no other feed shares.
    #[must_use]
    pub fn has_own_rings(&self) -> bool {
        self.own || self.name.is_some()
    }
}

/// The answer, with the descriptors of the rings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The daemon's number for the rings; to a guest, its own number for the feed.
    pub key: u64,
    /// Ordinals of the first frames that are the feed's, ring by ring: others have had those before.
    pub from: Vec<u64>,
    /// The pcap link type of its frames.
    pub link_type: u16,
    /// The engine's name, empty if it is not known.
    #[serde(default)]
    pub engine: String,
    /// Where in the kernel frames are taken.
    #[serde(default)]
    pub hook: Option<String>,
    /// Why this engine.
    #[serde(default)]
    pub why: String,
    /// Things the user should know.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Owner of the frames, for a source in another network namespace.
    #[serde(default)]
    pub owner: Option<Owner>,
    /// Where in its descriptor each ring lies, if not all of the descriptor is the ring: in a guest they lie in one
    /// device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// For a guest, which gets no descriptors: the one ring lies here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<InRegion>,
}

/// Owner of a source's frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// `container`, `pod`, `process` or `netns`.
    pub kind: String,
    /// Its name; of a process that of its command.
    pub name: String,
    /// The id of a container, or of a pod.
    pub id: Option<String>,
    /// The image of a container.
    pub image: Option<String>,
    /// A process in the network namespace, by its number where the daemon runs.
    pub pid: Option<u32>,
    /// The inode of the network namespace, which `lsns` shows.
    pub netns: u64,
}

/// `capture.attach`, with the descriptors of a channel, wake page and socket: the feed wakes sleepers there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// The client's number.
    pub feed: u64,
    /// The client's number for the sleeper; no other of the feed has it.
    pub sleeper: u64,
    /// The line of the wake page for the first ring; the others follow.
    pub first_line: usize,
}

/// `capture.detach`: the feed stops waking this sleeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Detach {
    /// The client's number.
    pub feed: u64,
    /// The client's number for the sleeper.
    pub sleeper: u64,
}

/// `capture.close`, `capture.let_go`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfFeed {
    /// The client's number.
    pub feed: u64,
}

/// The answer to `capture.close`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The daemon's number for the feed that was read last.
    pub key: u64,
    /// Its rings are closed: they are read to their end, and the ledger is final.
    pub ended: bool,
    /// Others read on: ordinals of the first frames that are not the feed's any more, ring by ring.
    #[serde(default)]
    pub until: Vec<u64>,
    /// Account of its frames since the client opened it; `None` if it could not be read.
    pub ledger: Option<Ledger>,
}

/// `capture.set_filter`. Refused with [`SHARED`] while others read the same rings; never for that to a guest: its feed
/// goes on in rings of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetFilter {
    /// The client's number.
    pub feed: u64,
    /// Which frames; empty takes all.
    pub filter: String,
}

/// `capture.block`. Refused as [`SetFilter`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// The client's number.
    pub feed: u64,
    /// Entries to block from here on.
    #[serde(default)]
    pub add: Vec<String>,
    /// Entries to unblock.
    #[serde(default)]
    pub remove: Vec<String>,
    /// For so long, from now on, are those of `add` left out; without an end if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// `capture.block_named`: the same for all feeds of a name that the client's user has, by whatever connection. Root and
/// the daemon's user change those of any user. All of them change, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockNamed {
    /// The name that the feeds were opened with.
    pub name: String,
    /// Entries to block from here on.
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
    /// How many feeds were changed.
    pub feeds: usize,
    /// Entries that are new, end later than before, or are gone: in any of them.
    pub changed: usize,
    /// Entries that one of them blocks by now.
    pub entries: usize,
    /// The daemon's numbers of their rings: another one is another feed, whose list was empty at first.
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
    /// How many feeds have the name.
    pub feeds: usize,
    /// Entries that all of them block.
    pub blocked: Vec<String>,
    /// Entries that only some of them block, and the number of those feeds.
    #[serde(default)]
    pub partly: BTreeMap<String, usize>,
    /// For how long yet, of those that expire: in the feed where it is longest.
    #[serde(default)]
    pub left_ms: BTreeMap<String, u64>,
    /// Entries that are not in this answer because there are too many.
    #[serde(default)]
    pub omitted: usize,
}

/// A source that the client may open: `capture.sources` gives a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its name for `capture.open`.
    pub source: String,
    /// Most bytes kept of a frame.
    pub snaplen: u32,
    /// The pcap link type of its frames, as far as that is known while it is closed.
    pub link_type: u16,
}

/// A feed of the client's: `capture.statistics` gives a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// The client's number.
    pub feed: u64,
    /// Its source.
    pub source: String,
    /// Account of its frames since the client opened it. While frames come, the counts are not of one instant.
    pub ledger: Option<Ledger>,
}

/// `capture.gone`: nothing more comes of a feed; its rings are closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// The client's number.
    pub feed: u64,
    /// Why, if not because its source came to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// It goes on in other rings, from the first frame that is not in these: a process that opens the same again, with
    /// the filter that it set last, within 10 seconds gets those.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved: bool,
}

/// Account of every frame of a feed: `offered = filtered + blocked + sampled + captured + drops`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Frames that came to the hook.
    pub offered: u64,
    /// Frames that the filter or the direction left out.
    pub filtered: u64,
    /// Whether a filter excluded further frames that were not counted.
    pub filtered_uncounted: bool,
    /// Frames that the block list left out.
    pub blocked: u64,
    /// Frames that sampling left out.
    pub sampled: u64,
    /// Frames written into the rings.
    pub captured: u64,
    /// Bytes kept of them.
    pub kept_bytes: u64,
    /// Bytes of them on the wire.
    pub wire_bytes: u64,
    /// Offload super-frames among them.
    pub super_frames: u64,
    /// Every place where a frame was lost, by name.
    pub drops: BTreeMap<String, u64>,
    /// Losses before the hook, if known.
    pub missed_before: Option<u64>,
}

/// For a feed that was opened again: its lives together. Numbers of a hostile daemon do not overflow.
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
