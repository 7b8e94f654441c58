//! The latest view, for several readers.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::view::View;

/// The latest view. Clones share it.
#[derive(Clone, Default)]
pub struct Latest(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    view: Arc<View>,
    is_over: bool,
}

impl Latest {
    /// Replaces the view.
    pub fn publish(&self, view: View) {
        self.lock().view = Arc::new(view);
        self.0.changed.notify_all();
    }

    /// Declares that no other view will follow, and wakes all readers.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.0.changed.notify_all();
    }

    /// Returns whether no other view will follow.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Returns the latest view. Before the first one, that is an empty view with the number 0.
    #[must_use]
    pub fn get(&self) -> Arc<View> {
        Arc::clone(&self.lock().view)
    }

    /// Waits at most `at_most` for a view with another number than `number`, and returns the latest view. Returns
    /// `None` if no other view will follow.
    #[must_use]
    pub fn wait(&self, number: u64, at_most: Duration) -> Option<Arc<View>> {
        let state = self.lock();
        let (state, _) = self
            .0
            .changed
            .wait_timeout_while(state, at_most, |state| {
                state.view.number == number && !state.is_over
            })
            .unwrap_or_else(PoisonError::into_inner);
        (!state.is_over).then(|| Arc::clone(&state.view))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
