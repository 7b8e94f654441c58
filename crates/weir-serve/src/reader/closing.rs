//! The end of a client's feed. It begins under a lock that keeps its rings from changing, and
//! finishes without a lock.

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Instant;

use weir_client::protocol::Closed;
use weir_ring::Ledger;

use super::{Reader, Reads};

/// A feed's rings when its subscription has ended.
pub(crate) struct Ending {
    /// The rings' ledger; `None` if it must still be requested, `Some(None)` if it could not be
    /// read.
    pub(crate) ledger: Option<Option<Ledger>>,
    /// Whether the rings are closed, and the ledger is their last one.
    pub(crate) is_final: bool,
}

/// A feed whose subscription has ended.
pub(super) struct Closing {
    reads: Arc<Reads>,
    /// Number of frames that had been written to each ring by then.
    until: Vec<u64>,
    is_final: bool,
    /// Set once it is known.
    ledger: OnceLock<Option<Ledger>>,
}

impl Closing {
    fn new(reads: Arc<Reads>, ending: Ending) -> Closing {
        let until = reads.written();
        let ledger = ending.ledger.map_or_else(OnceLock::new, OnceLock::from);
        Closing { reads, until, is_final: ending.is_final, ledger }
    }
}

/// After a panic in the closing, no thread may wait for its end: the feed is then closed without an
/// account.
struct BeginGuard<'a> {
    reader: &'a Reader,
    reads: &'a Arc<Reads>,
}

impl Drop for BeginGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ending = Ending { ledger: Some(None), is_final: true };
            self.reader.set_closing(Closing::new(Arc::clone(self.reads), ending));
        }
    }
}

impl Reader {
    /// Begins to close it: `end` ends the subscription. A guest's copy is told to end, without
    /// waiting for it. `false` if another thread closes the feed, or has closed it.
    ///
    /// For a guest's feed, the caller keeps the feed from moving to other rings during this call.
    /// Otherwise, the ledger of some rings would be combined with the frames of others.
    pub(crate) fn begin_close(&self, end: impl FnOnce(&Reads) -> Ending) -> bool {
        if std::mem::replace(&mut self.state().is_closing, true) {
            return false;
        }
        let reads = self.reads();
        let _guard = BeginGuard { reader: self, reads: &reads };
        let ending = end(&reads);
        let closing = Closing::new(Arc::clone(&reads), ending);
        // The copy passes on the remaining frames of the rings, and ends.
        self.copy.get().iter().for_each(|copy| copy.relay.stop());
        self.set_closing(closing);
        true
    }

    fn set_closing(&self, closing: Closing) {
        self.state().closing = Some(Arc::new(closing));
        self.begun.notify_all();
    }

    /// The facts about its end. Waits until its closing has begun.
    fn closing(&self) -> Option<Arc<Closing>> {
        let runs = |state: &mut super::State| state.closing.is_none();
        let state = self.begun.wait_while(self.state(), runs);
        state.unwrap_or_else(PoisonError::into_inner).closing.clone()
    }

    /// Gets the last ledger of its rings with `ask`, if it is not known yet.
    pub(crate) fn ask_last_ledger(&self, ask: impl FnOnce(&Reads) -> Option<Ledger>) {
        if let Some(closing) = self.closing() {
            closing.ledger.get_or_init(|| ask(&closing.reads));
        }
    }

    /// Its account, once its closing has begun; the same for every caller. Waits for a guest's copy
    /// until `deadline`. `ask` gets the last ledger of its rings, if it is not known yet.
    pub(crate) fn finish_close(
        &self,
        deadline: Instant,
        ask: impl FnOnce(&Reads) -> Option<Ledger>,
    ) -> Closed {
        let Some(closing) = self.closing() else { return self.told(true, Vec::new(), None) };
        if let Some(closed) = self.state().closed.clone() {
            return closed;
        }
        let Closing { reads, until, is_final, ledger } = &*closing;
        // Done before waiting for the copy: if others continue to read the rings, the ledger grows.
        let ledger = ledger.get_or_init(|| ask(reads));
        let copy = self.copy.get();
        // Afterwards the copy has all frames, and its ring is closed.
        copy.iter().for_each(|copy| copy.relay.finish_by(deadline));
        // If stopping a source fails, it may write for some time.
        let until = if *is_final { reads.written() } else { until.clone() };
        let ledger = ledger.as_ref().map(|ledger| {
            let host = || reads.account(ledger, &until);
            match copy {
                Some(copy) if *is_final && reads.are_all_closed() => {
                    copy.relay.account_of_closed(host)
                }
                Some(copy) => copy.relay.account(host),
                None => host(),
            }
        });
        let is_ended = *is_final || copy.is_some();
        let closed = self.told(is_ended, if is_ended { Vec::new() } else { until }, ledger);
        self.state().closed.get_or_insert(closed).clone()
    }

    fn told(
        &self,
        ended: bool,
        until: Vec<u64>,
        ledger: Option<weir_client::protocol::Ledger>,
    ) -> Closed {
        Closed { key: self.key, ended, until, ledger }
    }
}
