//! A feed as one client has it: the frames that it may read, its wake-ups, and the account of its frames since it
//! was opened.

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
    /// The request with which it opened the feed; [`asked_now`](Reader::asked_now) has the filter of now.
    pub asked: Open,
    /// The client's number for the feed.
    pub number: u64,
    /// The source's name.
    pub source: String,
    filter: Mutex<FilterText>,
    /// MiB of its rings.
    pub mib: u64,
    /// Its rings are sealed memory, for this reason.
    pub copied: Option<Copied>,
    /// When it was opened.
    pub since: Instant,
    /// Its subscription.
    pub claim: Claim,
    /// See [`Opening::key`].
    key: u64,
    reads: RwLock<Arc<Reads>>,
    state: Mutex<State>,
    /// Its closing has begun: the subscription has ended.
    begun: Condvar,
    /// Of a guest: its copy.
    copy: OnceLock<GuestFeed>,
    /// Nothing more joins it.
    is_complete: AtomicBool,
}

/// The filter in force.
struct FilterText {
    /// As the client has asked for it.
    asked: String,
    /// With that of the daemon's file.
    whole: String,
}

#[derive(Default)]
struct State {
    sleepers: BTreeMap<u64, Sleeping>,
    /// Somebody closes it, or has closed it.
    is_closing: bool,
    /// Once its subscription has ended.
    closing: Option<Arc<Closing>>,
    /// Once it is closed: its account.
    closed: Option<Closed>,
}

/// A sleeper that the feed wakes, until this is dropped.
struct Sleeping {
    /// `None` if the source had ended by then: its rings are closed, or about to be.
    _consumer: Option<RemoteConsumer>,
    /// Tells how far its consumer has read.
    waker: Waker,
    first_line: usize,
}

/// The parts of a [`Reader`], beside its account.
pub struct Opening {
    /// The client.
    pub peer: Arc<Peer>,
    /// The client's user, or the guest.
    pub who: Who,
    /// The client's request.
    pub asked: Open,
    /// The client's number for the feed.
    pub number: u64,
    /// The source's name.
    pub source: String,
    /// The whole filter.
    pub filter: String,
    /// MiB of its rings.
    pub mib: u64,
    /// Its rings are to be sealed memory, for this reason.
    pub copied: Option<Copied>,
    /// The number by which the client knows the feed; the probe's number of its rings if there is none. A guest is
    /// given one of its own: the probe's would tell how many feeds others have opened.
    pub key: Option<u64>,
}

impl Reader {
    /// A feed whose account begins where `from` and `base` say.
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

    /// The rings that it reads now.
    #[must_use]
    pub fn reads(&self) -> Arc<Reads> {
        Arc::clone(&self.reads.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The probe's name for them.
    #[must_use]
    pub fn feed(&self) -> FeedId {
        self.reads().feed
    }

    /// The probe has moved its subscription to these rings, all of whose frames are its own; `ledger` is the last one
    /// of those of before, all of whose frames were the feed's until the move if it `is_exact`.
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

    /// The number by which its client knows the feed.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    fn filter_text(&self) -> MutexGuard<'_, FilterText> {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the filter that is in force now: as the client has asked for it, and with that of the daemon's file.
    pub fn set_filter(&self, asked: &str, whole: String) {
        *self.filter_text() = FilterText { asked: asked.to_owned(), whole };
    }

    /// Has a guest read this copy of it.
    ///
    /// # Errors
    /// [`BUSY`] if it was closed since it was opened; the copy has ended then.
    pub(crate) fn set_copy(&self, copy: GuestFeed) -> Result<(), RpcError> {
        let state = self.state();
        if !state.is_closing {
            // Once, by who opens it.
            let _ = self.copy.set(copy);
            // Pairs with the one in `complete`: either it finds the copy, or this finds that it was called.
            fence(Ordering::SeqCst);
            if self.is_complete.load(Ordering::Relaxed) {
                self.complete();
            }
            return Ok(());
        }
        drop(state);
        // This waits.
        drop(copy);
        let said = "the feed was closed while it was opened: the daemon's file has changed, or its source has ended; \
                    try again";
        Err(RpcError::new(BUSY, said))
    }

    /// Has this called with the reason once copying to a guest has failed.
    pub(crate) fn listen(&self, listener: impl FnOnce(&str) + Send + 'static) {
        if let Some(copy) = self.copy.get() {
            copy.relay.listen(listener);
        }
    }

    /// Of a guest: whether it has its copy, which follows the feed to other rings.
    pub(crate) fn is_copied(&self) -> bool {
        self.copy.get().is_some()
    }

    /// Of a guest: nothing in it reads the copy any more.
    pub(crate) fn unmapped(&self) {
        self.copy.get().iter().for_each(|copy| copy.unmapped());
    }

    /// Nothing more joins it: a guest's copy ends once it has everything.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.copy.get().iter().for_each(|copy| copy.relay.complete());
    }

    /// The filter in force, with that of the daemon's file.
    #[must_use]
    pub fn filter(&self) -> String {
        self.filter_text().whole.clone()
    }

    /// The request by which its client would get this feed again.
    #[must_use]
    pub fn asked_now(&self) -> Open {
        Open { filter: self.filter_text().asked.clone(), ..self.asked.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The account of its frames, if the rings that it reads have this ledger now.
    #[must_use]
    pub fn account(&self, reads: &Reads, ledger: &Ledger) -> protocol::Ledger {
        let host = || reads.account(ledger, &reads.written());
        match self.copy.get() {
            Some(copy) => copy.relay.account(host),
            None => host(),
        }
    }

    /// Has it wake a sleeper of this number, on whose wake page the first ring has the line `first_line`.
    ///
    /// # Errors
    /// It has a sleeper of this number, or too many.
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

    /// Consumers that it wakes.
    #[must_use]
    pub fn consumers(&self) -> usize {
        self.state().sleepers.len()
    }

    /// The number of its client's connection, and the source: a client has one connection for each source.
    #[must_use]
    pub fn owner(&self) -> (u64, &str) {
        (self.peer.number(), &self.source)
    }

    /// Whether it was closed, or is being closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state().is_closing
    }

    /// Once it is closed: the account of its frames, if that could be read.
    #[must_use]
    pub fn closed_account(&self) -> Option<Option<protocol::Ledger>> {
        self.state().closed.as_ref().map(|closed| closed.ledger.clone())
    }
}
