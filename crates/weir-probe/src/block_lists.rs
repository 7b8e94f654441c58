//! The block lists of a probe's subscriptions. Entries that end are taken out by a thread, also when nobody asks.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use weir_capture::{CaptureError, Change};
use weir_filter::block::Entry;

use crate::core::SubscriptionId;
use crate::error::ProbeError;
use crate::timed_list::{End, ListChange, TimedList, Undo};

/// Changes what a subscription takes, as [`Probe::change`](crate::Probe::change) does.
type Changer = dyn Fn(SubscriptionId, Change) -> Result<(), ProbeError> + Send + Sync;

/// The block lists of subscriptions, each empty at first. They are changed here only: whoever changes one by the probe
/// itself changes what this does not know.
pub struct BlockLists {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    change: Box<Changer>,
    state: Mutex<State>,
    /// Something ends earlier than before, or it is over.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Each is locked while its source changes: one that takes long holds up nobody else's.
    lists: BTreeMap<SubscriptionId, Arc<Mutex<TimedList>>>,
    /// Something ends that the thread may not know of.
    is_changed: bool,
    is_over: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockLists {
    /// Lists that `change` puts into force.
    ///
    /// # Errors
    /// If there is no thread left.
    pub fn new(
        change: impl Fn(SubscriptionId, Change) -> Result<(), ProbeError> + Send + Sync + 'static,
    ) -> Result<BlockLists, ProbeError> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { change: Box::new(change), state, changed });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("weir-block".into())
            .spawn(move || own.expire())
            .map_err(|source| CaptureError::Os { doing: "starting a thread".into(), source })?;
        Ok(BlockLists { shared, thread: Some(thread) })
    }

    /// Changes a list, whole or not at all; says how to take that back.
    ///
    /// # Errors
    /// What the source says; nothing has changed then.
    pub fn change(
        &self,
        subscription: SubscriptionId,
        change: &ListChange,
    ) -> Result<Undo, ProbeError> {
        self.make(subscription, |list| list.plan(change))
    }

    /// Takes a change back; says how to make it again.
    ///
    /// # Errors
    /// What the source says; the change is still in force then.
    pub fn take_back(&self, subscription: SubscriptionId, undo: Undo) -> Result<Undo, ProbeError> {
        self.make(subscription, |_| undo.0)
    }

    fn make(
        &self,
        subscription: SubscriptionId,
        plan: impl FnOnce(&TimedList) -> BTreeMap<Entry, Option<End>>,
    ) -> Result<Undo, ProbeError> {
        let list = Arc::clone(lock(&self.shared.state).lists.entry(subscription).or_default());
        let mut list = lock(&list);
        let planned = plan(&list);
        let has = |entry: &Entry| list.entries().contains_key(entry);
        let (mut remove, mut add) = (Vec::new(), Vec::new());
        for (entry, then) in &planned {
            match (has(entry), then) {
                (true, None) => remove.push(*entry),
                (false, Some(_)) => add.push(*entry),
                _ => {}
            }
        }
        // Also where only ends change: whether the source is there is for it to say.
        let changed = (self.shared.change)(subscription, Change::Block { remove, add });
        if matches!(changed, Err(ProbeError::Unknown)) {
            self.forget(subscription);
        }
        changed?;
        let undo = list.carry_out(&planned);
        drop(list);
        self.shared.look_again();
        Ok(undo)
    }

    /// What a subscription blocks.
    #[must_use]
    pub fn of(&self, subscription: SubscriptionId) -> BTreeMap<Entry, End> {
        let list = lock(&self.shared.state).lists.get(&subscription).cloned();
        list.map(|list| lock(&list).entries().clone()).unwrap_or_default()
    }

    /// How many entries a subscription blocks.
    #[must_use]
    pub fn count(&self, subscription: SubscriptionId) -> usize {
        let list = lock(&self.shared.state).lists.get(&subscription).cloned();
        list.map_or(0, |list| lock(&list).entries().len())
    }

    /// The subscription has ended.
    pub fn forget(&self, subscription: SubscriptionId) {
        lock(&self.shared.state).lists.remove(&subscription);
    }
}

impl Drop for BlockLists {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn look_again(&self) {
        lock(&self.state).is_changed = true;
        self.changed.notify_all();
    }

    /// Takes out what is due, until it is over.
    fn expire(&self) {
        loop {
            let mut state = lock(&self.state);
            if state.is_over {
                return;
            }
            state.is_changed = false;
            let lists = state.lists.clone();
            drop(state);
            // One after the other: a source that hangs has the others' entries stay.
            let next = lists.iter().filter_map(|(id, list)| self.expire_in(*id, list)).min();
            // Those that have ended meanwhile are not kept.
            drop(lists);
            self.wait(next);
        }
    }

    /// Takes out what is due of one list; gives when to look again.
    fn expire_in(&self, subscription: SubscriptionId, list: &Mutex<TimedList>) -> End {
        let mut list = lock(list);
        let now = Instant::now();
        let due = list.due(now);
        if !due.is_empty() {
            let change = Change::Block { remove: due.clone(), add: Vec::new() };
            match (self.change)(subscription, change) {
                Err(ProbeError::Capture(error)) if !matches!(error, CaptureError::Ended) => {
                    list.not_expired(now);
                }
                // What has ended blocks nothing.
                Ok(()) | Err(_) => list.expired(&due, now),
            }
        }
        list.next()
    }

    fn wait(&self, until: End) {
        let state = lock(&self.state);
        let waits = |state: &mut State| !state.is_changed && !state.is_over;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(left) => drop(self.changed.wait_timeout_while(state, left, waits)),
            None => drop(self.changed.wait_while(state, waits)),
        }
    }
}
