//! Configuration updates for a thread that moves frames. The queue also holds the thread's state while it
//! moves none.
//!
//! The requesting thread prepares an update, and frees the objects that the update replaces. The thread
//! that moves frames takes updates over between two frames. While that thread moves no frames (it waits for
//! frames, has not started or has stopped), its state is *parked* in the queue, and the requesting thread
//! applies the update itself. So no update waits for the next frame.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest time between two checks of a queue whose thread neither takes updates nor parks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// State that a thread uses for each frame, and that other threads change.
pub(crate) trait Updated {
    /// One change.
    type Update;
    /// Objects that an update has replaced. The requesting thread finishes and frees them.
    type Retired;

    /// Applies one change, between two frames.
    fn apply(&mut self, update: Self::Update) -> Option<Self::Retired>;
}

/// Updates that a thread has not taken over yet.
pub(crate) struct UpdateQueue<T: Updated> {
    is_fresh: AtomicBool,
    state: Mutex<QueueState<T>>,
    changed: Condvar,
}

struct QueueState<T: Updated> {
    updates: Vec<T::Update>,
    retired: Vec<T::Retired>,
    parked: Option<Box<T>>,
}

impl<T: Updated> QueueState<T> {
    /// Applies all updates; returns whether there were any.
    fn apply(&mut self, state: &mut T) -> bool {
        let is_new = !self.updates.is_empty();
        for update in self.updates.drain(..) {
            self.retired.extend(state.apply(update));
        }
        is_new
    }
}

impl<T: Updated> UpdateQueue<T> {
    /// Creates a queue whose thread has not begun: `state` is parked.
    pub(crate) fn new(state: Box<T>) -> UpdateQueue<T> {
        let state = QueueState { updates: Vec::new(), retired: Vec::new(), parked: Some(state) };
        UpdateQueue {
            is_fresh: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Posts updates, which are applied in this order without a frame in between: at once if the state is
    /// parked, otherwise before the thread's next frame. Frees the replaced objects of earlier posts that
    /// no [`settle`](UpdateQueue::settle) has returned.
    pub(crate) fn post(&self, updates: impl IntoIterator<Item = T::Update>) {
        let mut state = self.lock();
        // The objects are freed only after the lock is released, because the thread that moves frames may wait for the
        // lock.
        let _freed = std::mem::take(&mut state.retired);
        state.updates.extend(updates);
        if let Some(mut parked) = state.parked.take() {
            state.apply(&mut parked);
            state.parked = Some(parked);
        } else {
            self.is_fresh.store(true, Ordering::Release);
        }
        drop(state);
    }

    /// Waits until all updates are applied, and returns the objects that they replaced.
    pub(crate) fn settle(&self) -> Vec<T::Retired> {
        let mut state = self.lock();
        while !state.updates.is_empty() {
            // The time limit is a safeguard: a thread always parks when it ends, in `Drop`.
            let waited = self.changed.wait_timeout(state, LOOK_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut state.retired)
    }

    /// Returns whether there are updates to take over.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh.load(Ordering::Acquire)
    }

    /// Takes the state, if it is parked, and applies new updates. For the thread that moves frames.
    #[cold]
    pub(crate) fn take_over(&self, own: Option<Box<T>>) -> Box<T> {
        let mut state = self.lock();
        let parked = own.or_else(|| state.parked.take());
        let mut own = parked.expect("one thread has the state or parks it here");
        self.is_fresh.store(false, Ordering::Relaxed);
        let is_new = state.apply(&mut own);
        drop(state);
        self.tell(is_new);
        own
    }

    /// Parks the state. For the thread that moves frames, when it is about to stop moving them.
    #[cold]
    pub(crate) fn park(&self, mut own: Box<T>) {
        let mut state = self.lock();
        self.is_fresh.store(false, Ordering::Relaxed);
        let is_new = state.apply(&mut own);
        state.parked = Some(own);
        drop(state);
        self.tell(is_new);
    }

    /// Wakes the threads in [`settle`](UpdateQueue::settle) if updates were applied. Otherwise `notify_all`
    /// is avoided: it is a system call even without waiting threads, and a thread that waits for frames
    /// parks each time.
    fn tell(&self, is_new: bool) {
        if is_new {
            self.changed.notify_all();
        }
    }

    /// Locks the state. The data is valid even if a thread panicked while holding it: updates are applied one by one,
    /// and each is small.
    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    /// A state that keeps the last number.
    #[derive(Default)]
    struct Last(u32);

    impl Updated for Last {
        type Update = u32;
        type Retired = u32;

        fn apply(&mut self, update: u32) -> Option<u32> {
            Some(std::mem::replace(&mut self.0, update))
        }
    }

    #[test]
    fn parked_state_is_changed_by_the_thread_that_asks() {
        let queue = UpdateQueue::new(Box::new(Last(1)));
        queue.post([2, 3]);
        assert_eq!(queue.settle(), [1, 2]);
        assert_eq!(queue.take_over(None).0, 3);
    }

    /// `notify_all` is a system call, and the state is parked at each wait for frames.
    #[test]
    fn a_turn_without_updates_tells_nobody() {
        let queue = UpdateQueue::new(Box::new(Last(1)));
        let mut own = queue.take_over(None);
        assert!(!queue.lock().apply(&mut own));
        queue.post([2]);
        assert!(queue.lock().apply(&mut own));
        assert!(!queue.lock().apply(&mut own));
        assert_eq!((own.0, queue.settle()), (2, vec![1]));
    }

    #[test]
    fn state_in_use_is_changed_by_its_thread_and_waited_for() {
        let queue = Arc::new(UpdateQueue::new(Box::new(Last(1))));
        let own = queue.take_over(None);
        let (tell, told) = channel();
        let asking = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                queue.post([7]);
                tell.send(()).expect("the test listens");
                queue.settle()
            }
        });
        told.recv().expect("posted");
        assert!(queue.is_fresh());
        let own = queue.take_over(Some(own));
        assert_eq!((own.0, asking.join().expect("settled")), (7, vec![1]));
        queue.park(own);
        queue.post([8]);
        assert!(!queue.is_fresh());
        assert_eq!(queue.take_over(None).0, 8);
    }
}
