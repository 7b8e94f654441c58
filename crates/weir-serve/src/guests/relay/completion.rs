//! The end of a relay. There is exactly one outcome, even if the relay's thread panics or hangs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_capture::error::error_text;
use weir_consumer::thread::Finished;
use weir_consumer::{Consumer, Delivered, Ordered};

use super::output::{Output, ToRegion};
use super::owed::Owed;

/// The result of a relay that has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Counts of frames that were copied, and of frames that were lapped.
    pub delivered: Delivered,
    /// Number of the feed's frames that the relay has not read.
    pub unread: u64,
    /// Number of the feed's frames that are in none of these counts: 0, except after a bug.
    pub missing: u64,
    /// The reason, if the relay has failed.
    pub failure: Option<String>,
}

impl Outcome {
    /// Returns the outcome of a relay's thread. `owed` has the number of frames that it had to copy.
    pub(super) fn of(finished: &Finished<Ordered<ToRegion>>, owed: &Owed) -> Outcome {
        let consumer = finished.consumer.as_ref();
        let failure = finished.failure.as_deref();
        let failure = failure.map(|error| format!("copying to the guest: {}", error_text(error)));
        let (delivered, unread) = (consumer.delivered(), consumer.rings().unread());
        let counted = delivered.frames.saturating_add(delivered.lapped).saturating_add(unread);
        let owed = owed.frames().filter(|_| failure.is_none()).unwrap_or(counted);
        // More frames are counted if others still read the rings: the thread has also copied frames that came between
        // the end of the feed and the moment at which it was told of the end.
        debug_assert!(
            owed <= counted,
            "{owed} frames, of which some are in no count: {delivered:?}, {unread} unread"
        );
        Outcome { delivered, unread, missing: owed.saturating_sub(counted), failure }
    }

    pub(super) fn failed(delivered: Delivered, reason: String) -> Outcome {
        Outcome { delivered, failure: Some(reason), ..Outcome::default() }
    }
}

type Listener = Box<dyn FnOnce(&str) + Send>;

/// A relay's outcome, once it has ended.
#[derive(Default)]
pub(super) struct Completion {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    /// Called once the relay has failed.
    listener: Option<Listener>,
}

impl Completion {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.lock().outcome.clone()
    }

    /// Waits for the outcome; returns `None` if the relay has not ended by `deadline`.
    pub(super) fn wait_until(&self, deadline: Instant) -> Option<Outcome> {
        let runs = |state: &mut State| state.outcome.is_none();
        let limit = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), limit, runs);
        waited.unwrap_or_else(PoisonError::into_inner).0.outcome.clone()
    }

    /// Records the outcome. Must be called when the relay of this output has ended. Only the first outcome counts,
    /// because no frames follow it.
    pub(super) fn complete(&self, output: &Output, outcome: Outcome) {
        output.close();
        let mut state = self.lock();
        if state.outcome.is_some() {
            return;
        }
        let listener = state.listener.take().filter(|_| outcome.failure.is_some());
        let reason = outcome.failure.clone().unwrap_or_default();
        state.outcome = Some(outcome);
        drop(state);
        self.changed.notify_all();
        // Called without the lock, because the listener notifies the client, which asks for the outcome.
        if let Some(listener) = listener {
            listener(&reason);
        }
    }

    pub(super) fn listen(&self, listener: Listener) {
        let mut state = self.lock();
        match state.outcome.as_ref().map(|outcome| outcome.failure.clone()) {
            None => state.listener = Some(listener),
            Some(failure) => {
                drop(state);
                if let Some(reason) = failure {
                    listener(&reason);
                }
            }
        }
    }
}

/// Completes a relay whose thread panics: this value is then dropped without a call of `complete`.
pub(super) struct CompletionGuard {
    completion: Arc<Completion>,
    output: Arc<Output>,
    is_completed: bool,
}

impl CompletionGuard {
    pub(super) fn new(completion: Arc<Completion>, output: Arc<Output>) -> CompletionGuard {
        CompletionGuard { completion, output, is_completed: false }
    }

    pub(super) fn complete(mut self, outcome: Outcome) {
        self.is_completed = true;
        self.completion.complete(&self.output, outcome);
    }
}

impl Drop for CompletionGuard {
    fn drop(&mut self) {
        if !self.is_completed {
            let reason = "copying to the guest: a bug has ended its thread".to_owned();
            let failed = Outcome::failed(Delivered::default(), reason);
            self.completion.complete(&self.output, failed);
        }
    }
}
