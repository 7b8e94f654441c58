//! The block lists of a probe's subscriptions. Threads remove entries that expire.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use weir_capture::{CaptureError, Change};
use weir_filter::block::Entry;

use crate::core::SubscriptionId;
use crate::error::ProbeError;
use crate::timed_list::{End, ListChange, TimedList, Undo};

/// Changes a subscription, as [`Probe::change`](crate::Probe::change) does.
type Changer = dyn Fn(SubscriptionId, Change) -> Result<(), ProbeError> + Send + Sync;

/// The block lists of subscriptions, which are empty at first. Lists must be changed only with this type: it does not
/// see changes that are made with the probe itself.
pub struct BlockLists {
    change: Arc<Changer>,
    lists: Mutex<BTreeMap<SubscriptionId, Arc<BlockList>>>,
    /// Threads that remove expired entries.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The block list of one subscription. A list with entries that expire has a thread of its own, so that a source that
/// takes long for a change, or hangs, does not delay the lists of others.
struct BlockList {
    subscription: SubscriptionId,
    change: Arc<Changer>,
    /// Locked while the source is changed.
    entries: Mutex<TimedList>,
    signals: Mutex<Signals>,
    signalled: Condvar,
}

/// Signals to the thread of a list.
#[derive(Default)]
struct Signals {
    has_thread: bool,
    /// The list has changed since the thread last looked at it.
    is_changed: bool,
    is_over: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockLists {
    /// Creates empty lists. `change` puts changes into force.
    #[must_use]
    pub fn new(
        change: impl Fn(SubscriptionId, Change) -> Result<(), ProbeError> + Send + Sync + 'static,
    ) -> BlockLists {
        let (lists, threads) = (Mutex::default(), Mutex::default());
        BlockLists { change: Arc::new(change), lists, threads }
    }

    /// Changes a list completely or not at all. Returns the value that undoes the change.
    ///
    /// # Errors
    /// The source's error, or no thread can be created for entries that expire. Nothing has changed then.
    pub fn change(
        &self,
        subscription: SubscriptionId,
        change: &ListChange,
    ) -> Result<Undo, ProbeError> {
        self.make(subscription, |list| list.plan(change))
    }

    /// Undoes a change. Returns the value that makes the change again.
    ///
    /// # Errors
    /// As [`change`](BlockLists::change). The change is still in force then.
    pub fn take_back(&self, subscription: SubscriptionId, undo: Undo) -> Result<Undo, ProbeError> {
        self.make(subscription, |_| undo.0)
    }

    fn make(
        &self,
        subscription: SubscriptionId,
        plan: impl FnOnce(&TimedList) -> BTreeMap<Entry, Option<End>>,
    ) -> Result<Undo, ProbeError> {
        let list = self.list_of(subscription);
        let mut entries = lock(&list.entries);
        let planned = plan(&entries);
        if planned.values().any(|then| then.is_some_and(|end| end.is_some())) {
            self.have_thread(&list)?;
        }
        let has = |entry: &Entry| entries.entries().contains_key(entry);
        let (mut remove, mut add) = (Vec::new(), Vec::new());
        for (entry, then) in &planned {
            match (has(entry), then) {
                (true, None) => remove.push(*entry),
                (false, Some(_)) => add.push(*entry),
                _ => {}
            }
        }
        // Called also if only expiry times change: the source then tells whether it still exists.
        let changed = (self.change)(subscription, Change::Block { remove, add });
        if matches!(changed, Err(ProbeError::Unknown)) {
            self.forget(subscription);
        }
        changed?;
        let undo = entries.carry_out(&planned);
        drop(entries);
        list.signal(|signals| signals.is_changed = true);
        Ok(undo)
    }

    fn list_of(&self, subscription: SubscriptionId) -> Arc<BlockList> {
        let new = || {
            Arc::new(BlockList {
                subscription,
                change: Arc::clone(&self.change),
                entries: Mutex::default(),
                signals: Mutex::default(),
                signalled: Condvar::new(),
            })
        };
        Arc::clone(lock(&self.lists).entry(subscription).or_insert_with(new))
    }

    fn have_thread(&self, list: &Arc<BlockList>) -> Result<(), ProbeError> {
        let mut signals = lock(&list.signals);
        if signals.has_thread {
            return Ok(());
        }
        let own = Arc::clone(list);
        let thread = std::thread::Builder::new()
            .name("weir-block".into())
            .spawn(move || own.expire())
            .map_err(|source| CaptureError::Os { doing: "starting a thread".into(), source })?;
        signals.has_thread = true;
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Returns the entries that a subscription blocks, and when each expires.
    #[must_use]
    pub fn of(&self, subscription: SubscriptionId) -> BTreeMap<Entry, End> {
        let list = lock(&self.lists).get(&subscription).cloned();
        list.map(|list| lock(&list.entries).entries().clone()).unwrap_or_default()
    }

    /// Returns the number of entries that a subscription blocks.
    #[must_use]
    pub fn count(&self, subscription: SubscriptionId) -> usize {
        let list = lock(&self.lists).get(&subscription).cloned();
        list.map_or(0, |list| lock(&list.entries).entries().len())
    }

    /// Removes the list of a subscription that has ended.
    pub fn forget(&self, subscription: SubscriptionId) {
        let list = lock(&self.lists).remove(&subscription);
        list.into_iter().for_each(|list| list.signal(|signals| signals.is_over = true));
    }
}

/// Waits for the threads. A source that hangs in a change must have been stopped before.
impl Drop for BlockLists {
    fn drop(&mut self) {
        for list in lock(&self.lists).values() {
            list.signal(|signals| signals.is_over = true);
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            let _ = thread.join();
        }
    }
}

impl BlockList {
    /// Changes the signals, and wakes the list's thread.
    fn signal(&self, set: impl FnOnce(&mut Signals)) {
        set(&mut lock(&self.signals));
        self.signalled.notify_all();
    }

    /// Removes entries when they expire, until the list is removed.
    fn expire(&self) {
        loop {
            let mut signals = lock(&self.signals);
            if signals.is_over {
                return;
            }
            signals.is_changed = false;
            drop(signals);
            let next = self.remove_expired();
            self.wait(next);
        }
    }

    /// Removes expired entries. Returns when the next entry expires.
    fn remove_expired(&self) -> End {
        let mut list = lock(&self.entries);
        let now = Instant::now();
        let due = list.due(now);
        if !due.is_empty() {
            let change = Change::Block { remove: due.clone(), add: Vec::new() };
            match (self.change)(self.subscription, change) {
                Err(ProbeError::Capture(error)) if !matches!(error, CaptureError::Ended) => {
                    list.not_expired(now);
                }
                // All other errors mean that the subscription has ended or the probe was stopped: nothing is blocked.
                Ok(()) | Err(_) => list.expired(&due, now),
            }
        }
        list.next()
    }

    fn wait(&self, until: End) {
        let signals = lock(&self.signals);
        let waits = |signals: &mut Signals| !signals.is_changed && !signals.is_over;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(left) => drop(self.signalled.wait_timeout_while(signals, left, waits)),
            None => drop(self.signalled.wait_while(signals, waits)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn within_limit(what: &str, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < LIMIT, "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn ends_now() -> ListChange {
        let add = vec![Entry::Address([10, 0, 0, 1].into())];
        ListChange { add, end: Some(Instant::now()), ..ListChange::default() }
    }

    #[test]
    fn a_source_that_hangs_holds_up_no_entries_of_another() {
        let [hangs, other] = [1, 2].map(SubscriptionId);
        let (tell, told) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let lists = BlockLists::new(move |subscription, change| {
            if subscription == hangs
                && matches!(change, Change::Block { add, .. } if add.is_empty())
            {
                tell.send(()).unwrap();
                // Until the other side is dropped.
                let _ = lock(&released).recv();
            }
            Ok(())
        });
        // Dropped before the lists, also where this fails.
        let release = release;
        lists.change(hangs, &ends_now()).unwrap();
        told.recv_timeout(LIMIT).expect("the entry is taken out");
        lists.change(other, &ends_now()).unwrap();
        within_limit("the other source's entry ends", || lists.count(other) == 0);
        drop(release);
        within_limit("the entry ends behind the hang", || lists.count(hangs) == 0);
    }

    #[test]
    fn a_thread_ends_with_its_list_and_is_started_only_for_entries_that_expire() {
        let lists = BlockLists::new(|_, _| Ok(()));
        let threads = || lock(&lists.threads).iter().filter(|own| !own.is_finished()).count();
        let (list, later) = (SubscriptionId(1), Instant::now() + LIMIT);
        lists.change(list, &ListChange { end: None, ..ends_now() }).unwrap();
        assert_eq!(threads(), 0);
        for _ in 0..2 {
            let add = vec![Entry::Address([10, 0, 0, 2].into())];
            let change = ListChange { add, end: Some(later), ..ListChange::default() };
            lists.change(list, &change).unwrap();
            assert_eq!(threads(), 1);
        }
        lists.forget(list);
        within_limit("the thread ends", || threads() == 0);
    }
}
