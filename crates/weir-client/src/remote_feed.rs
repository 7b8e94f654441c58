//! A feed of a daemon: its rings and wake-ups, changes, closing.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use weir_plug::PlugError;
use weir_plug::limits::PATIENCE_MAX;
use weir_ring::geometry::WriterWord;
use weir_ring::memory::{self, Trust};
use weir_ring::wake::{RINGS_MAX, Waker};
use weir_ring::{Mapping, Ring};

use crate::caller::{Caller, Kept};
use crate::ending::Ending;
use crate::error::ClientError;
use crate::lock::lock;
use crate::protocol::{
    self, Attach, Block, Closed, Detach, InRegion, OfFeed, Opened, Part, SetFilter, Statistics,
};
use crate::region::Region;

/// Most entries of a block list in one message. With the longest entries, which are IPv6 flows, that is 500 KB.
const BLOCK_ENTRIES: usize = 4096;

/// A feed of a daemon. Dropping this value closes the feed.
pub struct RemoteFeed {
    number: u64,
    caller: Arc<Caller>,
    ending: Arc<Ending>,
    pub(crate) opened: Opened,
    pub(crate) rings: Vec<Ring<Mapping>>,
    /// The ordinal at which the consumer begins to read each ring: [`Opened::from`], except in the child of a fork.
    pub(crate) begin: Vec<u64>,
    written: Mutex<Written>,
    next_sleeper: AtomicU64,
    is_gone: AtomicBool,
}

/// Numbers of frames that the rings of a feed have had. They are kept because the memory of the rings may be taken
/// away.
#[derive(Default)]
struct Written {
    /// The largest known number of frames that each ring has had, including frames before the feed.
    known: Vec<u64>,
    /// Captured frames of the feed by the last ledger.
    told_captured: u64,
}

impl RemoteFeed {
    pub(crate) fn new(number: u64, caller: Arc<Caller>, ending: Arc<Ending>) -> RemoteFeed {
        let (opened, rings, begin) = (Opened::default(), Vec::new(), Vec::new());
        let (written, is_gone) = (Mutex::default(), AtomicBool::new(false));
        let next_sleeper = AtomicU64::new(1);
        RemoteFeed { number, caller, ending, opened, rings, begin, written, next_sleeper, is_gone }
    }

    /// Returns the daemon's answer: the engine, the reason for it, and where the feed begins in its rings.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Returns the rings of the feed.
    #[must_use]
    pub fn rings(&self) -> &[Ring<Mapping>] {
        &self.rings
    }

    /// Returns the number of frames that each ring has had, including frames before the feed. It never decreases,
    /// although a ring in a device's memory reads as zeros once the device is unplugged (Linux 6.1): then the counts
    /// are those of an earlier call, of the daemon's last [ledger](RemoteFeed::ledger), and of the frames that a reader
    /// has read ([`note_read`](RemoteFeed::note_read)).
    #[must_use]
    pub fn frames_written(&self) -> Vec<u64> {
        let mut written = lock(&self.written);
        self.raise(&mut written.known, self.rings.iter().map(Ring::frames_written));
        if let [ring] = &self.rings[..]
            && ring.writer_word(WriterWord::Opened) == 0
        {
            let from = self.opened.from.first().copied().unwrap_or_default();
            let told = from.saturating_add(written.told_captured);
            self.raise(&mut written.known, std::iter::once(told));
        }
        written.known.clone()
    }

    /// Records that a reader has read a ring up to this ordinal, so that the ring has had the frames before it.
    pub fn note_read(&self, ring: usize, ordinal: u64) {
        let before = std::iter::repeat_n(0, ring);
        self.raise(&mut lock(&self.written).known, before.chain([ordinal]));
    }

    fn raise(&self, known: &mut Vec<u64>, counts: impl Iterator<Item = u64>) {
        if known.len() < self.rings.len() {
            let from = self.opened.from.iter().copied().chain(std::iter::repeat(0));
            *known = from.take(self.rings.len()).collect();
        }
        known.iter_mut().zip(counts).for_each(|(most, count)| *most = count.max(*most));
    }

    fn in_region(&self) -> Option<(&dyn Region, &InRegion)> {
        self.caller.region.as_deref().zip(self.opened.region.as_ref())
    }

    /// Returns the ending, which is set when the source or the daemon ends.
    #[must_use]
    pub fn ending(&self) -> &Arc<Ending> {
        &self.ending
    }

    /// Makes the feed wake a sleeper of this process. `channel` has the sleeper's descriptors ([`Sleeper::channel`]),
    /// and `first_line` is the line of its wake page for the first ring. Returns the feed's number for the sleeper.
    ///
    /// The descriptors must be closed after this call: an open one would hide that the daemon has died.
    ///
    /// # Errors
    /// The daemon's error.
    ///
    /// [`Sleeper::channel`]: weir_ring::wake::Sleeper::channel
    pub fn attach(&self, channel: &[OwnedFd; 2], first_line: usize) -> Result<u64, ClientError> {
        if let Some((region, at)) = self.in_region() {
            let again =
                |fd: &OwnedFd| fd.try_clone().map_err(PlugError::os("copying a descriptor"));
            let lines = first_line + self.rings.len();
            let waker = Waker::attach(again(&channel[0])?, again(&channel[1])?, lines)?;
            let ring = self.rings.first().ok_or_else(|| ClientError::Answer("no ring".into()))?;
            return region.attach(at, ring, waker, first_line).map_err(ClientError::Region);
        }
        let sleeper = self.next_sleeper.fetch_add(1, Ordering::Relaxed);
        let attach = Attach { feed: self.number, sleeper, first_line };
        self.caller.call::<Value>("attach", &attach, channel)?;
        Ok(sleeper)
    }

    /// Stops the feed from waking this sleeper.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn detach(&self, sleeper: u64) -> Result<(), ClientError> {
        if let Some((region, _)) = self.in_region() {
            region.detach(sleeper);
            return Ok(());
        }
        let detach = Detach { feed: self.number, sleeper };
        self.caller.call::<Value>("detach", &detach, &[]).map(drop)
    }

    /// Sets another filter; an empty one takes all frames.
    ///
    /// # Errors
    /// The daemon's error, which is [`SHARED`](protocol::SHARED) if others read the feed's rings. The filter has not
    /// changed then.
    pub fn set_filter(&self, filter: &str) -> Result<(), ClientError> {
        let filter = SetFilter { feed: self.number, filter: filter.to_owned() };
        self.caller.call::<Value>("set_filter", &filter, &[]).map(drop)
    }

    /// Blocks frames by the entries of `add`, and unblocks those of `remove`, which are removed first. Long lists are
    /// sent in several messages.
    ///
    /// # Errors
    /// As [`set_filter`](RemoteFeed::set_filter). Of a long list, a part may be in force then.
    pub fn block(&self, add: &[String], remove: &[String]) -> Result<(), ClientError> {
        self.block_until(add, remove, None)
    }

    /// Blocks frames by these entries for `time`; the daemon then removes the entries. An entry that exists already
    /// expires at the later of both times.
    ///
    /// # Errors
    /// As [`block`](RemoteFeed::block), or the time is too short or too long ([`limits`](crate::limits)).
    pub fn block_for(&self, add: &[String], time: Duration) -> Result<(), ClientError> {
        self.block_until(add, &[], Some(time))
    }

    fn block_until(
        &self,
        add: &[String],
        remove: &[String],
        time: Option<Duration>,
    ) -> Result<(), ClientError> {
        let (feed, expires_ms) = (self.number, time.map(protocol::expires_ms));
        in_messages(add, remove, |add, remove| {
            let block = Block { feed, add: add.to_vec(), remove: remove.to_vec(), expires_ms };
            self.caller.call::<Value>("block", &block, &[]).map(drop)
        })
    }

    /// Returns the counts of the feed so far; `None` if the daemon could not read them.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn ledger(&self) -> Result<Option<protocol::Ledger>, ClientError> {
        self.ledger_within(PATIENCE_MAX)
    }

    /// Like [`ledger`](RemoteFeed::ledger); fails if the daemon does not answer within `limit`.
    ///
    /// # Errors
    /// As [`ledger`](RemoteFeed::ledger).
    pub fn ledger_within(&self, limit: Duration) -> Result<Option<protocol::Ledger>, ClientError> {
        let of_feed = OfFeed { feed: self.number };
        let (answer, _) = self.caller.call_within::<Statistics>("ledger", &of_feed, &[], limit)?;
        if let Some(ledger) = &answer.ledger {
            lock(&self.written).told_captured = ledger.captured;
            let _ = self.frames_written();
        }
        Ok(answer.ledger)
    }

    /// Closes the feed, and returns its counts. It has the frames that were captured until then. Sleepers are woken
    /// until this value is dropped.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn close(&self) -> Result<Closed, ClientError> {
        let (closed, _) =
            self.caller.call::<Closed>("close", &OfFeed { feed: self.number }, &[])?;
        if let Some(ledger) = &closed.ledger {
            lock(&self.written).told_captured = ledger.captured;
        }
        Ok(closed)
    }

    /// Records that the daemon has ended, so that dropping the feed sends no request.
    pub fn forget(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

/// Calls `call` with parts of the lists that fit into one message each: first the entries to remove.
pub(crate) fn in_messages(
    add: &[String],
    remove: &[String],
    mut call: impl FnMut(&[String], &[String]) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    if add.len() + remove.len() <= BLOCK_ENTRIES {
        return call(add, remove);
    }
    remove.chunks(BLOCK_ENTRIES).try_for_each(|some| call(&[], some))?;
    add.chunks(BLOCK_ENTRIES).try_for_each(|some| call(some, &[]))
}

impl Drop for RemoteFeed {
    fn drop(&mut self) {
        self.caller.forget(self.number);
        let (number, rings) = (self.number, std::mem::take(&mut self.rings));
        let is_gone = self.is_gone.load(Ordering::Relaxed);
        let at = self.opened.region.clone();
        if !is_gone || at.is_some() {
            let in_device = !self.opened.parts.is_empty();
            // Other memory exists as long as anybody has it mapped.
            let rings = if in_device || at.is_some() { rings } else { Vec::new() };
            self.caller.let_go(Kept { number, rings, at, is_gone });
        }
    }
}

/// Opens the ring of a feed in a guest's region.
pub(crate) fn ring_of_region(
    region: &dyn Region,
    opened: &Opened,
) -> Result<Vec<Ring<Mapping>>, ClientError> {
    let at = opened.region.as_ref();
    let at = at.ok_or_else(|| ClientError::Answer("it says no place in the region".into()))?;
    Ok(vec![region.ring(at).map_err(ClientError::Region)?])
}

/// Opens the rings in these descriptors, or in these parts of them. The writer is not trusted: any process may listen
/// at the path of a daemon.
pub(crate) fn attach_rings(
    fds: Vec<OwnedFd>,
    parts: &[Part],
) -> Result<Vec<Ring<Mapping>>, ClientError> {
    if !parts.is_empty() && parts.len() != fds.len() {
        return Err(ClientError::Answer(format!("{} parts of {} rings", parts.len(), fds.len())));
    }
    let mut parts = parts.iter();
    let attach = |fd| match parts.next() {
        Some(part) => memory::attach_part(fd, part.offset, part.bytes, Trust::Anybody),
        None => memory::attach(fd, Trust::Anybody),
    };
    let rings: Result<Vec<_>, _> = fds.into_iter().map(attach).collect();
    let rings = rings?;
    if rings.is_empty() || rings.len() > RINGS_MAX {
        return Err(ClientError::Answer(format!("{} rings", rings.len())));
    }
    Ok(rings)
}
