//! The feeds that a consumer of the run reads: those that the probe gives it, as that changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_capture::pace::ReaderProgress;
use weir_consumer::{Begin, FeedChange, FrameSource, JoinedFeed};
use weir_probe::{Consumer, Joined, Update};
use weir_ring::wake::Sleeper;

use crate::consumers::RunConsumer;
use crate::journal::Journal;
use crate::sources::Subscriptions;

/// The feeds that one consumer reads.
pub struct Reading {
    pub consumer: Consumer,
    pub journal: Arc<Journal>,
    pub subscriptions: Arc<Subscriptions>,
    /// No feed joins any more.
    pub is_complete: Arc<AtomicBool>,
    pub progress: Progress,
}

impl Reading {
    fn joined(&self, joined: Joined) -> Option<FeedChange> {
        let Joined { feed, rings, from, first_line, progress, .. } = joined;
        let readers = self.journal.joined(self.consumer.id, feed);
        let (output, label) = self.subscriptions.output_of(&readers)?;
        self.progress.joined(feed.number(), progress);
        let key = feed.number();
        // Its writers are this process, so they cannot be gone without an end.
        let channel = None;
        // The journal holds all that is captured against what its consumers account for.
        let begin = if from.is_empty() { Begin::First } else { Begin::At(from) };
        let feed = JoinedFeed { key, output, label, rings, first_line, channel, begin };
        Some(FeedChange::Joined(feed))
    }
}

impl FrameSource for Reading {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        let change = |update| match update {
            Update::Joined(joined) => self.joined(joined),
            Update::Left(feed, until) => Some(FeedChange::Left { key: feed.number(), until }),
        };
        self.consumer.take_updates().into_iter().filter_map(change).collect()
    }

    fn sleeper(&self) -> &Sleeper {
        &self.consumer.sleeper
    }

    fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.journal.consumer_ended(self.consumer.id);
    }
}

/// Where a consumer says how far it is, of feeds whose writers wait for that: by the feed's key. Such a writer has one
/// ring a feed.
#[derive(Clone, Default)]
pub struct Progress(Arc<Mutex<Vec<(u64, ReaderProgress)>>>);

impl Progress {
    fn joined(&self, key: u64, progress: Option<ReaderProgress>) {
        self.lock().extend(progress.map(|progress| (key, progress)));
    }

    /// Lets files that wait for this consumer go on.
    pub fn tell(&self, consumer: &(dyn RunConsumer + 'static)) {
        for (feed, progress) in self.lock().iter() {
            // One that was read to its end waits for nobody.
            if let Some(ordinal) = consumer.rings().ordinal(*feed, 0) {
                progress.reached(ordinal);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, ReaderProgress)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Once it is dropped, no file waits for the consumer any more.
pub struct Leaving(pub Progress);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}
