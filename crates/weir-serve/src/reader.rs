//! A feed of one client: the frames that it may read, its wake-ups, and the counts of its frames since it was opened.

mod closing;
mod lag;
mod reads;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use weir_client::protocol::{self, Closed, Open};
use weir_plug::message::{BUSY, RpcError};
use weir_plug::{Peer, Who};
use weir_probe::{FeedId, RemoteConsumer};
use weir_ring::wake::Waker;
use weir_ring::{Ledger, Mapping, Ring};

use crate::guests::GuestFeed;
use crate::limits::SLEEPERS_OF_A_FEED_MAX;
use crate::rights::Copied;
use crate::slots::Claim;
use closing::Closing;
pub(crate) use closing::Ending;
pub use lag::Lag;
pub use reads::Reads;

/// A feed of one client.
pub struct Reader {
    /// The client.
    pub peer: Arc<Peer>,
    /// The client's user, or the guest.
    pub who: Who,
    /// The request with which the client opened the feed. [`asked_now`](Reader::asked_now) has the current filter.
    pub asked: Open,
    /// The client's number for the feed.
    pub number: u64,
    /// The name of the source.
    pub source: String,
    filter: Mutex<FilterText>,
    /// Size of the feed's rings in MiB.
    pub mib: u64,
    /// The reason why the rings are sealed memory, if they are.
    pub copied: Option<Copied>,
    /// When the feed was opened.
    pub since: Instant,
    /// The feed's subscription.
    pub claim: Claim,
    /// See [`Opening::key`].
    key: u64,
    reads: RwLock<Arc<Reads>>,
    state: Mutex<State>,
    /// Notified when the closing has begun: the subscription has ended.
    begun: Condvar,
    /// The copy of the feed, for a guest.
    copy: OnceLock<GuestFeed>,
    /// Whether no more rings join the feed.
    is_complete: AtomicBool,
}

/// The filter in force.
struct FilterText {
    /// The filter as the client requested it.
    asked: String,
    /// The same filter, combined with that of the daemon's file.
    whole: String,
}

#[derive(Default)]
struct State {
    sleepers: BTreeMap<u64, Sleeping>,
    /// Whether a thread is closing the feed, or has closed it.
    is_closing: bool,
    /// Set once the subscription has ended.
    closing: Option<Arc<Closing>>,
    /// The feed's final counts, set once it is closed.
    closed: Option<Closed>,
}

/// A sleeper that the feed wakes until this value is dropped.
struct Sleeping {
    /// `None` if the source had ended already: its rings are closed, or will be soon.
    _consumer: Option<RemoteConsumer>,
    /// The sleeper's channel, with the position that its consumer reports.
    waker: Waker,
    first_line: usize,
}

/// The parts of a [`Reader`] that are known before its subscription.
pub struct Opening {
    /// The client.
    pub peer: Arc<Peer>,
    /// The client's user, or the guest.
    pub who: Who,
    /// The client's request.
    pub asked: Open,
    /// The client's number for the feed.
    pub number: u64,
    /// The name of the source.
    pub source: String,
    /// The filter, combined with that of the daemon's file.
    pub filter: String,
    /// Size of the feed's rings in MiB.
    pub mib: u64,
    /// The reason why the rings must be sealed memory, if they must.
    pub copied: Option<Copied>,
    /// The number by which the client knows the feed; `None`: the probe's number of its rings. A guest gets a separate
    /// number, because the probe's would reveal how many feeds others have opened.
    pub key: Option<u64>,
}

impl Reader {
    /// Creates a feed whose counts begin at the ordinals `from`, with the ledger `base`.
    pub fn new(
        opening: Opening,
        claim: Claim,
        feed: FeedId,
        rings: Vec<Ring<Mapping>>,
        (from, base): (Vec<u64>, Ledger),
    ) -> Reader {
        let Opening { peer, who, asked, number, source, filter, mib, copied, key } = opening;
        let filter = FilterText { asked: asked.filter.clone(), whole: filter };
        let (filter, since, state) = (Mutex::new(filter), Instant::now(), Mutex::default());
        let (copy, begun) = (OnceLock::new(), Condvar::new());
        let key = key.unwrap_or(feed.number());
        let reads = RwLock::new(Arc::new(Reads::new(feed, rings, from, base)));
        Reader {
            peer,
            who,
            asked,
            number,
            source,
            filter,
            mib,
            copied,
            since,
            claim,
            key,
            reads,
            state,
            begun,
            copy,
            is_complete: AtomicBool::new(false),
        }
    }

    /// Returns the rings that the feed reads now.
    #[must_use]
    pub fn reads(&self) -> Arc<Reads> {
        Arc::clone(&self.reads.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the probe's id of these rings.
    #[must_use]
    pub fn feed(&self) -> FeedId {
        self.reads().feed
    }

    /// Records that the probe has moved the feed's subscription to these rings, whose frames all belong to the feed.
    /// `ledger` is the last ledger of the previous rings. If `is_exact`, all of their frames until the move belong to
    /// the feed.
    pub(crate) fn moved(
        &self,
        feed: FeedId,
        rings: Vec<Ring<Mapping>>,
        ledger: Option<&Ledger>,
        is_exact: bool,
    ) {
        let mut reads = self.reads.write().unwrap_or_else(PoisonError::into_inner);
        *reads = Arc::new(reads.followed_by(feed, rings, ledger, is_exact));
    }

    /// Returns the number by which the client knows the feed.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    fn filter_text(&self) -> MutexGuard<'_, FilterText> {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the filter in force: as the client requested it, and combined with that of the daemon's file.
    pub fn set_filter(&self, asked: &str, whole: String) {
        *self.filter_text() = FilterText { asked: asked.to_owned(), whole };
    }

    /// Sets the copy that a guest reads.
    ///
    /// # Errors
    /// [`BUSY`] if the feed was closed since it was opened. The copy has then ended.
    pub(crate) fn set_copy(&self, copy: GuestFeed) -> Result<(), RpcError> {
        let state = self.state();
        if !state.is_closing {
            // Set only once, by the thread that opens the feed.
            let _ = self.copy.set(copy);
            // Pairs with the fence in `complete`: either `complete` finds the copy, or this finds
            // that it was called.
            fence(Ordering::SeqCst);
            if self.is_complete.load(Ordering::Relaxed) {
                self.complete();
            }
            return Ok(());
        }
        drop(state);
        // Dropped without the lock, because dropping the copy may wait.
        drop(copy);
        let said = "the feed was closed while it was opened: the daemon's file has changed, or its source has ended; \
                    try again";
        Err(RpcError::new(BUSY, said))
    }

    /// Sets a listener that gets the reason once copying to a guest has failed.
    pub(crate) fn listen(&self, listener: impl FnOnce(&str) + Send + 'static) {
        if let Some(copy) = self.copy.get() {
            copy.relay.listen(listener);
        }
    }

    /// Tells whether the feed is a guest's and has a copy, which follows the feed to other rings.
    pub(crate) fn is_copied(&self) -> bool {
        self.copy.get().is_some()
    }

    /// Records that no process in the guest has the copy mapped any more.
    pub(crate) fn unmapped(&self) {
        self.copy.get().iter().for_each(|copy| copy.unmapped());
    }

    /// Records that no more rings join the feed. A guest's copy ends once it has all frames.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.copy.get().iter().for_each(|copy| copy.relay.complete());
    }

    /// Returns the filter in force, combined with that of the daemon's file.
    #[must_use]
    pub fn filter(&self) -> String {
        self.filter_text().whole.clone()
    }

    /// Returns the request by which the client would get this feed again.
    #[must_use]
    pub fn asked_now(&self) -> Open {
        Open { filter: self.filter_text().asked.clone(), ..self.asked.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of the feed's frames, computed from the current ledger of its rings.
    #[must_use]
    pub fn account(&self, reads: &Reads, ledger: &Ledger) -> protocol::Ledger {
        let host = || reads.account(ledger, &reads.written());
        match self.copy.get() {
            Some(copy) => copy.relay.account(host),
            None => host(),
        }
    }

    /// Adds a sleeper with this number, which the feed wakes. `first_line` is the line of its wake page for the first
    /// ring.
    ///
    /// # Errors
    /// The feed has a sleeper with this number, or too many sleepers, or it is closed.
    pub fn add_sleeper(
        &self,
        number: u64,
        first_line: usize,
        waker: Waker,
        attach: impl FnOnce() -> Result<Option<RemoteConsumer>, RpcError>,
    ) -> Result<(), RpcError> {
        let mut state = self.state();
        if state.is_closing {
            return Err(RpcError::params(format!("feed {} is closed", self.number)));
        }
        if state.sleepers.contains_key(&number) {
            return Err(RpcError::params(format!("the feed has a sleeper {number} already")));
        }
        if state.sleepers.len() >= SLEEPERS_OF_A_FEED_MAX {
            let said = format!("a feed wakes {SLEEPERS_OF_A_FEED_MAX} sleepers at most");
            return Err(RpcError::refused(said));
        }
        let consumer = attach()?;
        state.sleepers.insert(number, Sleeping { _consumer: consumer, waker, first_line });
        Ok(())
    }

    /// Stops waking this sleeper. Does nothing if the sleeper is unknown.
    pub fn remove_sleeper(&self, number: u64) {
        let gone = self.state().sleepers.remove(&number);
        drop(gone);
    }

    /// Stops waking all sleepers.
    pub fn remove_sleepers(&self) {
        let gone = std::mem::take(&mut self.state().sleepers);
        drop(gone);
    }

    /// Returns the number of consumers that the feed wakes.
    #[must_use]
    pub fn consumers(&self) -> usize {
        self.state().sleepers.len()
    }

    /// Returns the number of the client's connection, and the source. A client has one connection for each source.
    #[must_use]
    pub fn owner(&self) -> (u64, &str) {
        (self.peer.number(), &self.source)
    }

    /// Tells whether the feed was closed, or is being closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state().is_closing
    }

    /// Returns the final counts of a closed feed; the inner `None` if they could not be read.
    #[must_use]
    pub fn closed_account(&self) -> Option<Option<protocol::Ledger>> {
        self.state().closed.as_ref().map(|closed| closed.ledger.clone())
    }
}
