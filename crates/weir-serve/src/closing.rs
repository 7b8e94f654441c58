//! Closing a feed: at a client's wish, when the client goes, and when the daemon's file denies it.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use weir_client::protocol::Closed;
use weir_plug::Who;

use crate::daemon::Daemon;
use crate::limits::RELAY_END_TIME_MAX;
use crate::reader::{Closing, Reader};
use crate::slots::Claim;
use crate::user::User;

impl Daemon {
    /// Closes a feed, once, and gives its account. A guest's copy is waited for.
    pub(crate) fn close(&self, reader: &Arc<Reader>) -> Closed {
        match self.begin_close_alone(reader) {
            Some(closing) => closing.finish(Instant::now() + RELAY_END_TIME_MAX),
            None => reader.wait_until_closed(),
        }
    }

    /// [`begin_close`](Daemon::begin_close), for who does not hold the source's [`handing`](Daemon::handing).
    pub(crate) fn begin_close_alone(&self, reader: &Arc<Reader>) -> Option<Closing> {
        let handing = self.handing(&reader.source);
        // A guest's feed may move to other rings meanwhile; and whoever changes a feed asks who else reads its rings.
        let _handing = handing.read().unwrap_or_else(PoisonError::into_inner);
        self.begin_close(reader)
    }

    /// Ends a feed's subscription, and has a guest's copy end: [`Closing::finish`] waits for that. `None` if somebody
    /// else closes it, or has.
    pub(crate) fn begin_close(&self, reader: &Arc<Reader>) -> Option<Closing> {
        reader.begin_close(|reads| {
            let has_ended = self.board.closed(reads.feed).is_some();
            self.leave(&reader.source, reader.claim);
            match self.board.closed(reads.feed) {
                // Rings that close because this was their last reader have some frames more. A guest's copy ends with
                // the subscription; a process reads them.
                Some(ledger) => (ledger, has_ended || matches!(reader.who, Who::Process(_))),
                None => {
                    let ledgers = self.ledgers_of(&[reader.claim]);
                    (ledgers.ok().and_then(|mut all| all.remove(&reads.feed)), false)
                }
            }
        })
    }

    /// Ends a subscription.
    pub(crate) fn leave(&self, source: &str, claim: Claim) {
        self.slots.close(source, &self.probe, claim);
        self.lists.forget(claim.subscription);
    }

    /// Takes back everything that a client has of a feed.
    pub(crate) fn let_go(&self, reader: &Arc<Reader>) {
        self.close(reader);
        reader.remove_sleepers();
        self.board.remove(reader);
        self.usage.close(&User::from(&reader.who), reader.mib);
    }
}
