//! Updates for a consumer, which are kept until the consumer takes them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::pace::ReaderProgress;
use weir_ring::{Mapping, Ring};

use crate::core::{FeedId, SourceId};
use crate::limits::PAST_LIVES_MAX;

/// A change to the feeds that a consumer reads. If a source vanishes and comes back repeatedly while the consumer takes
/// no updates, only the feeds of its last [`PAST_LIVES_MAX`](crate::limits::PAST_LIVES_MAX) lives are kept; the updates
/// of older feeds are discarded, and [`Event::LetGo`](crate::core::Event::LetGo) counts their frames.
pub enum Update {
    /// The consumer reads these rings from now on, from their first frame.
    Joined(Joined),
    /// The consumer reads the rings of this feed only up to these ordinals, one for each ring. A ring without an
    /// ordinal is read to its end.
    Left(FeedId, Vec<u64>),
}

/// A feed that a consumer reads.
pub struct Joined {
    /// The id of the feed.
    pub feed: FeedId,
    /// The source of the feed.
    pub source: SourceId,
    /// Number of times that the source had been opened by then.
    pub life: u64,
    /// The rings: one, or one for each thread or CPU that writes frames.
    pub rings: Vec<Ring<Mapping>>,
    /// Ordinal of the feed's first frame in each ring; empty: all frames belong to the feed.
    pub from: Vec<u64>,
    /// The line of its first ring in the consumer's wake page.
    pub first_line: usize,
    /// Number of the consumer's channel that wakes it; `None` in the probe's own process.
    pub channel: Option<usize>,
    /// The place where this consumer reports how far it has read each ring, if the writer waits for readers.
    pub progress: Option<ReaderProgress>,
}

/// The queue of updates from the probe to one consumer.
#[derive(Default)]
pub struct Updates {
    untaken: Mutex<Untaken>,
    changed: Condvar,
    /// Whether updates may be in the queue.
    is_changed: AtomicBool,
}

#[derive(Default)]
struct Untaken {
    updates: VecDeque<Update>,
    /// No more updates will come.
    is_over: bool,
}

/// A feed whose updates were discarded, because the consumer did not take them while its source vanished and came back.
/// If the consumer had joined it several times, there is one value for each.
pub struct LetGo {
    /// The source of the feed.
    pub source: SourceId,
    /// The id of the feed.
    pub feed: FeedId,
    /// Number of the feed's frames in its rings.
    pub frames: u64,
}

impl Updates {
    /// Adds an update. Returns the feeds whose updates are discarded, because there are too many.
    pub fn push(&self, update: Update) -> Vec<LetGo> {
        let mut untaken = self.lock();
        let left = match &update {
            Update::Left(feed, _) => Some(*feed),
            Update::Joined(_) => None,
        };
        untaken.updates.push_back(update);
        let gone = left.map(|feed| untaken.let_oldest_go(feed)).unwrap_or_default();
        self.is_changed.store(true, Ordering::Release);
        self.changed.notify_all();
        gone
    }

    /// Records that no more updates will come.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Returns the updates that have come since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Update> {
        if !self.is_changed.load(Ordering::Relaxed) {
            return Vec::new();
        }
        // Reset before the updates are taken: so an update that comes in between is not missed, and at worst causes a
        // needless look.
        self.is_changed.swap(false, Ordering::Acquire);
        self.lock().updates.drain(..).collect()
    }

    /// Waits for the next update, and returns it; `None` after `limit`, or if no update is left and no more will come.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<Update> {
        let waits = |untaken: &mut Untaken| untaken.updates.is_empty() && !untaken.is_over;
        let waited = self.changed.wait_timeout_while(self.lock(), limit, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.updates.pop_front()
    }

    /// Waits for at most `limit` until a feed is joined. Other updates that come before it are skipped.
    #[must_use]
    pub fn wait_for_feed(&self, limit: Duration) -> Option<Joined> {
        let begin = Instant::now();
        loop {
            match self.wait(limit.saturating_sub(begin.elapsed()))? {
                Update::Joined(joined) => return Some(joined),
                Update::Left(..) => {}
            }
        }
    }

    /// Locks the queue. A poisoned lock is ignored: the queue is consistent after every step.
    fn lock(&self) -> MutexGuard<'_, Untaken> {
        self.untaken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A feed whose joining and leaving are both still in the queue.
struct Past<'a> {
    joined: &'a Joined,
    /// The ordinals up to which its rings are to be read.
    until: &'a [u64],
    /// Positions of its two updates in the queue: that it was joined, and that it was left. An update of leaving does
    /// not count if the update of joining was taken before.
    places: [usize; 2],
}

impl Untaken {
    /// Discards the updates of the oldest life of a source, after a feed of the source was left, if the consumer has
    /// not taken them and there are too many lives.
    fn let_oldest_go(&mut self, left: FeedId) -> Vec<LetGo> {
        let Some(source) = self.joined().find(|joined| joined.feed == left).map(|of| of.source)
        else {
            return Vec::new();
        };
        let past = self.past(source);
        let mut lives: Vec<u64> = past.iter().map(|past| past.joined.life).collect();
        // They are in order, so equal ones are adjacent.
        lives.dedup();
        if lives.len() <= PAST_LIVES_MAX {
            return Vec::new();
        }
        let (mut gone, mut told) = (Vec::new(), BTreeSet::new());
        for Past { joined, until, places } in past {
            if joined.life == lives[0] {
                // A ring without an ordinal is read to its end.
                let rings = joined.rings.iter().enumerate();
                let frames = rings.map(|(at, ring)| {
                    let until = until.get(at).copied().unwrap_or(ring.frames_written());
                    until.saturating_sub(joined.from.get(at).copied().unwrap_or_default())
                });
                gone.push(LetGo { source, feed: joined.feed, frames: frames.sum() });
                told.extend(places);
            }
        }
        let mut places = 0..;
        self.updates.retain(|_| places.next().is_none_or(|place| !told.contains(&place)));
        gone
    }

    /// Returns the feeds of a source whose joining and leaving are both in the queue, one for each joining.
    fn past(&self, source: SourceId) -> Vec<Past<'_>> {
        let past = self.updates.iter().enumerate().filter_map(|(at, update)| match update {
            Update::Joined(joined) if joined.source == source => {
                let mut behind = self.updates.iter().enumerate().skip(at);
                behind.find_map(|(place, update)| match update {
                    Update::Left(feed, until) if *feed == joined.feed => {
                        Some(Past { joined, until, places: [at, place] })
                    }
                    _ => None,
                })
            }
            _ => None,
        });
        past.collect()
    }

    fn joined(&self) -> impl Iterator<Item = &Joined> {
        self.updates.iter().filter_map(|update| match update {
            Update::Joined(joined) => Some(joined),
            Update::Left(..) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(feed: u64, life: u64) -> Update {
        Update::Joined(Joined {
            feed: FeedId(feed),
            source: SourceId(0),
            life,
            rings: Vec::new(),
            from: Vec::new(),
            first_line: 0,
            channel: None,
            progress: None,
        })
    }

    /// A feed that the consumer already reads is still to be left, although the same feed is
    /// released.
    #[test]
    fn a_feed_that_is_let_go_is_left_all_the_same_by_who_had_joined_it_before() {
        let updates = Updates::default();
        let left = |feed| Update::Left(FeedId(feed), vec![feed]);
        updates.push(joined(1, 0));
        assert_eq!(updates.take().len(), 1);
        assert!(updates.push(left(1)).is_empty());
        let mut gone = Vec::new();
        for life in 0..=PAST_LIVES_MAX as u64 {
            updates.push(joined(1 + life, life));
            gone.extend(updates.push(left(1 + life)));
        }
        let gone: Vec<_> = gone.iter().map(|gone| gone.feed).collect();
        assert_eq!(gone, [FeedId(1)]);
        let feeds = updates.take().into_iter().map(|update| match update {
            Update::Joined(Joined { feed, .. }) => (feed.number(), "joined"),
            Update::Left(feed, _) => (feed.number(), "left"),
        });
        let of_lives =
            (2..=1 + PAST_LIVES_MAX as u64).flat_map(|feed| [(feed, "joined"), (feed, "left")]);
        assert!(feeds.eq([(1, "left")].into_iter().chain(of_lives)));
    }
}
