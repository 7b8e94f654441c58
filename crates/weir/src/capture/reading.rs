//! The feeds that a consumer reads, as updated by the probe.

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
    /// Set when no feed will join any more.
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
        // The writers are in this process, so they close their rings before they vanish.
        let channel = None;
        // By default from the first frame: a consumer must account for all captured frames.
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

/// The progress of a consumer in feeds whose writers wait for the consumer, by the key of the feed. Such a feed has one
/// ring.
#[derive(Clone, Default)]
pub struct Progress(Arc<Mutex<Vec<(u64, ReaderProgress)>>>);

impl Progress {
    fn joined(&self, key: u64, progress: Option<ReaderProgress>) {
        self.lock().extend(progress.map(|progress| (key, progress)));
    }

    /// Reports the consumer's progress to the writers that wait for it.
    pub fn tell(&self, consumer: &(dyn RunConsumer + 'static)) {
        for (feed, progress) in self.lock().iter() {
            // `None`: the feed was read to its end, so its writer does not wait.
            if let Some(ordinal) = consumer.rings().ordinal(*feed, 0) {
                progress.reached(ordinal);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, ReaderProgress)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the progress when it is dropped, so that no writer waits for the consumer any more.
pub struct Leaving(pub Progress);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}
