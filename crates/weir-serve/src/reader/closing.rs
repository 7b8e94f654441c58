//! The end of a client's feed: begun under a lock that keeps its rings as they are, and finished without any.

use std::sync::Arc;
use std::time::Instant;

use weir_client::protocol::Closed;
use weir_ring::Ledger;

use super::{Reader, Reads};
use crate::limits::RELAY_END_TIME_MAX;

/// A feed whose subscription has ended. Who else closes it waits until this is finished or dropped.
pub(crate) struct Closing {
    reader: Arc<Reader>,
    reads: Arc<Reads>,
    /// Frames that the rings had had when the subscription ended.
    until: Vec<u64>,
    ledger: Option<Ledger>,
    /// The rings are closed, and the ledger is their last one.
    is_final: bool,
    is_finished: bool,
}

impl Closing {
    pub(super) fn new(
        reader: Arc<Reader>,
        reads: Arc<Reads>,
        until: Vec<u64>,
        ledger: Option<Ledger>,
        is_final: bool,
    ) -> Closing {
        Closing { reader, reads, until, ledger, is_final, is_finished: false }
    }

    /// Waits for a guest's copy, until `deadline` at most, and gives the account.
    pub(crate) fn finish(mut self, deadline: Instant) -> Closed {
        let closed = self.account(deadline);
        self.is_finished = true;
        closed
    }

    fn account(&self, deadline: Instant) -> Closed {
        let Closing { reader, reads, ledger, .. } = self;
        let copy = reader.copy.get();
        // By then it has everything, and its ring is closed.
        copy.iter().for_each(|copy| copy.relay.finish_by(deadline));
        // A source whose stop fails may write a while longer.
        let until = if self.is_final { reads.written() } else { self.until.clone() };
        let ledger = ledger.as_ref().map(|ledger| {
            let host = || reads.account(ledger, &until);
            match copy {
                Some(copy) if self.is_final && reads.are_all_closed() => {
                    copy.relay.account_of_closed(host)
                }
                Some(copy) => copy.relay.account(host),
                None => host(),
            }
        });
        let is_ended = self.is_final || copy.is_some();
        let closed = reader.told(is_ended, if is_ended { Vec::new() } else { until }, ledger);
        reader.closed_with(closed.clone());
        closed
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nobody waits for an account that does not come.
            self.reader.closed_with(self.reader.told(true, Vec::new(), None));
        } else if !self.is_finished {
            self.account(Instant::now() + RELAY_END_TIME_MAX);
        }
    }
}
