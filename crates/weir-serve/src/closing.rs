//! Closing a feed: at the client's request, when the client leaves, or when the daemon's file
//! denies it.
//!
//! Closing a feed has two parts. The first one ends the subscription, while no thread can move the feed to other rings.
//! The second one gets the rings' ledger and waits for a guest's copy. The thread that needs the ledger carries it out,
//! without a lock.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use weir_client::protocol::Closed;
use weir_plug::Who;
use weir_ring::Ledger;

use crate::daemon::Daemon;
use crate::limits::RELAY_END_TIME_MAX;
use crate::reader::{Ending, Reader, Reads};
use crate::slots::Claim;
use crate::user::User;

impl Daemon {
    /// Closes a feed, once, and returns its ledger. Waits for a guest's copy.
    pub(crate) fn close(&self, reader: &Arc<Reader>) -> Closed {
        self.begin_close_alone(reader);
        self.finish_close(reader, Instant::now() + RELAY_END_TIME_MAX)
    }

    /// Like [`begin_close`](Daemon::begin_close), for callers that do not hold the source's
    /// [`handing`](Daemon::handing) lock.
    pub(crate) fn begin_close_alone(&self, reader: &Reader) -> bool {
        let handing = self.handing(&reader.source);
        // Without the lock, a guest's feed could move to other rings at the same time. And a thread that changes a feed
        // checks which other feeds read its rings.
        let _handing = handing.read().unwrap_or_else(PoisonError::into_inner);
        self.begin_close(reader)
    }

    /// Carries out the first part: ends a feed's subscription, and tells a guest's copy to end without waiting for it.
    /// Returns `false` if another thread is closing or has closed the feed.
    pub(crate) fn begin_close(&self, reader: &Reader) -> bool {
        reader.begin_close(|reads| {
            let has_ended = self.board.closed(reads.feed).is_some();
            self.leave(&reader.source, reader.claim);
            // If this was the last reader, the rings get some more frames until they are closed. A process reads them;
            // a guest's copy ends with the subscription.
            let ledger = self.board.closed(reads.feed);
            let is_final = ledger.is_some() && (has_ended || matches!(reader.who, Who::Process(_)));
            Ending { ledger, is_final }
        })
    }

    /// Carries out the second part, for a feed whose closing has begun: returns its ledger. Waits for a guest's copy
    /// until `deadline`.
    pub(crate) fn finish_close(&self, reader: &Reader, deadline: Instant) -> Closed {
        reader.finish_close(deadline, |reads| self.last_ledger(reader, reads))
    }

    /// Carries out the second part, for several feeds whose closing has begun. Waits for all their copies together.
    pub(crate) fn finish_all(&self, readers: &[Arc<Reader>]) {
        // Done before the wait for copies: if other feeds still read the rings, the ledgers grow.
        for reader in readers {
            reader.ask_last_ledger(|reads| self.last_ledger(reader, reads));
        }
        let deadline = Instant::now() + RELAY_END_TIME_MAX;
        let (guests, processes): (Vec<_>, Vec<_>) =
            readers.iter().partition(|reader| matches!(reader.who, Who::Guest(_)));
        // A process has no copy to wait for.
        for reader in processes.into_iter().chain(guests) {
            self.finish_close(reader, deadline);
        }
    }

    /// Returns the ledger of the rings that a feed has just stopped reading: the final one if they are closed, the
    /// current one if others still read them. Waits for their source.
    fn last_ledger(&self, reader: &Reader, reads: &Reads) -> Option<Ledger> {
        let now = || self.ledgers_of(&[reader.claim]).ok()?.remove(&reads.feed);
        let closed = || self.board.closed(reads.feed).flatten();
        // The rings may be closed while the source is asked.
        closed().or_else(now).or_else(closed)
    }

    /// Ends a subscription.
    pub(crate) fn leave(&self, source: &str, claim: Claim) {
        self.slots.close(source, &self.probe, claim);
        self.lists.forget(claim.subscription);
    }

    /// Releases everything that belongs to a client's feed.
    pub(crate) fn let_go(&self, reader: &Arc<Reader>) {
        self.close(reader);
        reader.remove_sleepers();
        self.board.remove(reader);
        self.usage.close(&User::from(&reader.who), reader.mib);
    }

    /// Releases all feeds of a client. No feed waits for the copy of another.
    pub(crate) fn let_go_all(&self, readers: &[Arc<Reader>]) {
        readers.iter().for_each(|reader| _ = self.begin_close_alone(reader));
        self.finish_all(readers);
        readers.iter().for_each(|reader| self.let_go(reader));
    }
}
