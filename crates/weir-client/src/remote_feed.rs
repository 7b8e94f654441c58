//! A feed of a daemon: its rings, its wake-ups, and how it is changed and closed.

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

/// Entries of a block list in one message: with the longest, a flow of IPv6, 500 KB.
const BLOCK_ENTRIES: usize = 4096;

/// A feed of a daemon. Dropping it closes it.
pub struct RemoteFeed {
    number: u64,
    caller: Arc<Caller>,
    ending: Arc<Ending>,
    pub(crate) opened: Opened,
    pub(crate) rings: Vec<Ring<Mapping>>,
    /// Where its consumer begins to read, ring by ring: at [`Opened::from`], if nothing else is known.
    pub(crate) begin: Vec<u64>,
    written: Mutex<Written>,
    next_sleeper: AtomicU64,
    is_gone: AtomicBool,
}

/// Frames that the rings of a feed have had, for when their memory is taken away.
#[derive(Default)]
struct Written {
    /// Most frames that each ring was known to have had, those of before the feed included.
    known: Vec<u64>,
    /// Frames of the feed by the last ledger.
    told_captured: u64,
}

impl RemoteFeed {
    pub(crate) fn new(number: u64, caller: Arc<Caller>, ending: Arc<Ending>) -> RemoteFeed {
        let (opened, rings, begin) = (Opened::default(), Vec::new(), Vec::new());
        let (written, is_gone) = (Mutex::default(), AtomicBool::new(false));
        let next_sleeper = AtomicU64::new(1);
        RemoteFeed { number, caller, ending, opened, rings, begin, written, next_sleeper, is_gone }
    }

    /// Which engine takes the frames, why, and where the feed begins in its rings.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Its rings.
    #[must_use]
    pub fn rings(&self) -> &[Ring<Mapping>] {
        &self.rings
    }

    /// Frames that each ring has had, those of before the feed included. It never decreases: a ring in a device's
    /// memory reads zeros once the device is unplugged (Linux 6.1). Then the counts are those of an earlier call, of
    /// the daemon's last [ledger](RemoteFeed::ledger), and of the frames that a reader has read
    /// ([`note_read`](RemoteFeed::note_read)).
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

    /// A reader has read a ring up to this ordinal, so the ring has had the frames before it.
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

    /// Its end, which comes by itself when its source or the daemon ends.
    #[must_use]
    pub fn ending(&self) -> &Arc<Ending> {
        &self.ending
    }

    /// Lets it wake a sleeper of this process, whose descriptors these are ([`Sleeper::channel`]); the first ring
    /// has the line `first_line` of its page. Gives the sleeper's number.
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

    /// Lets it not wake this sleeper any more.
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

    /// Sets another filter from here on; empty takes all.
    ///
    /// # Errors
    /// The daemon's error, [`SHARED`](protocol::SHARED) if others read its rings; nothing has changed then.
    pub fn set_filter(&self, filter: &str) -> Result<(), ClientError> {
        let filter = SetFilter { feed: self.number, filter: filter.to_owned() };
        self.caller.call::<Value>("set_filter", &filter, &[]).map(drop)
    }

    /// Blocks frames by these entries, and unblocks others: first those that are removed. Long lists go in several
    /// messages.
    ///
    /// # Errors
    /// As [`set_filter`](RemoteFeed::set_filter); of a long list a part may be in force.
    pub fn block(&self, add: &[String], remove: &[String]) -> Result<(), ClientError> {
        self.block_until(add, remove, None)
    }

    /// Blocks frames by these entries for this time, and then no more: the daemon ensures that. An entry that is
    /// there ends at the later of both times.
    ///
    /// # Errors
    /// As [`block`](RemoteFeed::block), and a time that is too short or too long ([`limits`](crate::limits)).
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

    /// Its ledger so far; `None` if the daemon could not read it.
    ///
    /// # Errors
    /// The daemon's error.
    pub fn ledger(&self) -> Result<Option<protocol::Ledger>, ClientError> {
        self.ledger_within(PATIENCE_MAX)
    }

    /// The same, for a caller that waits so long for the answer and no longer.
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

    /// Closes it, and gives its ledger. Its frames are those that were captured by then; sleepers are woken until it is
    /// dropped.
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

    /// To be called if the daemon is known to be gone, so that dropping the feed sends no request.
    pub fn forget(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }
}

/// Calls this with entries that fit into one message each: first those that are removed.
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
            // Other memory is there for as long as anybody has it mapped.
            let rings = if in_device || at.is_some() { rings } else { Vec::new() };
            self.caller.let_go(Kept { number, rings, at, is_gone });
        }
    }
}

/// The ring of a feed in a guest's region.
pub(crate) fn ring_of_region(
    region: &dyn Region,
    opened: &Opened,
) -> Result<Vec<Ring<Mapping>>, ClientError> {
    let at = opened.region.as_ref();
    let at = at.ok_or_else(|| ClientError::Answer("it says no place in the region".into()))?;
    Ok(vec![region.ring(at).map_err(ClientError::Region)?])
}

/// The rings of these descriptors, or in these parts of them. Nobody is trusted: the daemon of a path may be anybody.
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
