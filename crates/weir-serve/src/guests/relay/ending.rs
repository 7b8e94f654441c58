//! The end of a relay: one, whether its thread says so, panics or hangs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_capture::error::error_text;
use weir_consumer::thread::Finished;
use weir_consumer::{Consumer, Delivered, Ordered};

use super::output::{Output, ToRegion};

/// How a relay has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct End {
    /// What it has copied, or was too slow for.
    pub delivered: Delivered,
    /// Frames that are the feed's and that it has left.
    pub unread: u64,
    /// Why it could not go on.
    pub failure: Option<String>,
}

impl End {
    pub(super) fn of(finished: &Finished<Ordered<ToRegion>>) -> End {
        let consumer = finished.consumer.as_ref();
        let failure = finished.failure.as_ref();
        let failure = failure.map(|error| format!("copying to the guest: {}", error_text(error)));
        End { delivered: consumer.delivered(), unread: consumer.rings().unread(), failure }
    }

    pub(super) fn failed(delivered: Delivered, reason: String) -> End {
        End { delivered, unread: 0, failure: Some(reason) }
    }
}

type Listener = Box<dyn FnOnce(&str) + Send>;

/// The end, once it is there.
#[derive(Default)]
pub(super) struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    end: Option<End>,
    /// Is called once the relay has failed.
    listener: Option<Listener>,
}

impl Ending {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> Option<End> {
        self.lock().end.clone()
    }

    /// The end, once it is there; `None` after `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Option<End> {
        let runs = |state: &mut State| state.end.is_none();
        let waited = self.changed.wait_timeout_while(self.lock(), limit, runs);
        waited.unwrap_or_else(PoisonError::into_inner).0.end.clone()
    }

    /// The relay of this output has ended. The first end counts: the output has no more frames after it.
    pub(super) fn end(&self, output: &Output, end: End) {
        output.close();
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        let listener = state.listener.take().filter(|_| end.failure.is_some());
        let reason = end.failure.clone().unwrap_or_default();
        state.end = Some(end);
        drop(state);
        self.changed.notify_all();
        // Without the lock: it tells the client, which asks how this has ended.
        if let Some(listener) = listener {
            listener(&reason);
        }
    }

    pub(super) fn listen(&self, listener: Listener) {
        let mut state = self.lock();
        match state.end.as_ref().map(|end| end.failure.clone()) {
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

/// Ends a relay whose thread panics: dropped untold.
pub(super) struct EndingGuard {
    ending: Arc<Ending>,
    output: Arc<Output>,
    is_told: bool,
}

impl EndingGuard {
    pub(super) fn new(ending: Arc<Ending>, output: Arc<Output>) -> EndingGuard {
        EndingGuard { ending, output, is_told: false }
    }

    pub(super) fn end(mut self, end: End) {
        self.is_told = true;
        self.ending.end(&self.output, end);
    }
}

impl Drop for EndingGuard {
    fn drop(&mut self) {
        if !self.is_told {
            let reason = "copying to the guest: a bug has ended its thread".to_owned();
            self.ending.end(&self.output, End::failed(Delivered::default(), reason));
        }
    }
}
