//! The end of a client's feed. Closing begins under a lock that keeps its rings from changing, and finishes without a
//! lock.

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Instant;

use weir_client::protocol::Closed;
use weir_ring::Ledger;

use super::{Reader, Reads};

/// The state of a feed's rings when its subscription has ended.
pub(crate) struct Ending {
    /// The rings' ledger; `None` if it must still be requested, `Some(None)` if it could not be read.
    pub(crate) ledger: Option<Option<Ledger>>,
    /// Whether the rings are closed, and the ledger is final.
    pub(crate) is_final: bool,
}

/// The final position of a feed whose subscription has ended.
pub(super) struct Closing {
    reads: Arc<Reads>,
    /// Number of frames that had been written to each ring when the subscription ended.
    until: Vec<u64>,
    is_final: bool,
    /// Set once the ledger is known.
    ledger: OnceLock<Option<Ledger>>,
}

impl Closing {
    fn new(reads: Arc<Reads>, ending: Ending) -> Closing {
        let until = reads.written();
        let ledger = ending.ledger.map_or_else(OnceLock::new, OnceLock::from);
        Closing { reads, until, is_final: ending.is_final, ledger }
    }
}

/// Completes the closing after a panic, so that no thread waits for its end: the feed is then closed without a ledger.
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
    /// Begins to close the feed: `end` ends the subscription. A guest's copy is told to end, and this does not wait for
    /// it. Returns `false` if another thread is closing or has closed the feed.
    ///
    /// For a guest's feed, the caller keeps the feed from moving to other rings during this call. Otherwise, the ledger
    /// of some rings would be combined with the frame counts of others.
    pub(crate) fn begin_close(&self, end: impl FnOnce(&Reads) -> Ending) -> bool {
        if std::mem::replace(&mut self.state().is_closing, true) {
            return false;
        }
        let reads = self.reads();
        let _guard = BeginGuard { reader: self, reads: &reads };
        let ending = end(&reads);
        let closing = Closing::new(Arc::clone(&reads), ending);
        // The copy copies the remaining frames of the rings, and ends.
        self.copy.get().iter().for_each(|copy| copy.relay.stop());
        self.set_closing(closing);
        true
    }

    fn set_closing(&self, closing: Closing) {
        self.state().closing = Some(Arc::new(closing));
        self.begun.notify_all();
    }

    /// Returns the state at the end of the subscription. Waits until the closing has begun.
    fn closing(&self) -> Option<Arc<Closing>> {
        let runs = |state: &mut super::State| state.closing.is_none();
        let state = self.begun.wait_while(self.state(), runs);
        state.unwrap_or_else(PoisonError::into_inner).closing.clone()
    }

    /// Gets the last ledger of the feed's rings with `ask`, if it is not known yet.
    pub(crate) fn ask_last_ledger(&self, ask: impl FnOnce(&Reads) -> Option<Ledger>) {
        if let Some(closing) = self.closing() {
            closing.ledger.get_or_init(|| ask(&closing.reads));
        }
    }

    /// Returns the feed's final counts, once its closing has begun; the same for every caller. Waits for a guest's copy
    /// until `deadline`. `ask` gets the last ledger of the feed's rings, if it is not known yet.
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
        // Done before the wait for the copy: if others still read the rings, the ledger grows.
        let ledger = ledger.get_or_init(|| ask(reads));
        let copy = self.copy.get();
        // After this, the copy has all frames, and its ring is closed.
        copy.iter().for_each(|copy| copy.relay.finish_by(deadline));
        // If a source could not be stopped, it may go on writing for some time.
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
