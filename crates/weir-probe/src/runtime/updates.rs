//! Messages to a consumer, kept until it takes them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::pace::ReaderProgress;
use weir_ring::{Mapping, Ring};

use crate::core::{FeedId, SourceId};
use crate::limits::PAST_LIVES_MAX;

/// A change of the feeds that a consumer reads. Of a source that comes and goes while none is taken, the feeds
/// of its last [`PAST_LIVES_MAX`](crate::limits::PAST_LIVES_MAX) lives are kept; of older ones nothing is told
/// here, and [`Event::LetGo`](crate::core::Event::LetGo) counts their frames.
pub enum Update {
    /// It reads these rings from here on, from their first frame.
    Joined(Joined),
    /// It reads the rings of this feed no further than these ordinals, ring by ring. For a ring that has ended it is
    /// its end.
    Left(FeedId, Vec<u64>),
}

/// A feed that a consumer reads.
pub struct Joined {
    /// Which one.
    pub feed: FeedId,
    /// Of this source.
    pub source: SourceId,
    /// How often that had been opened by then.
    pub life: u64,
    /// Its rings: one, or as many as threads or CPUs write.
    pub rings: Vec<Ring<Mapping>>,
    /// Ordinals of the first frames that are the feed's, ring by ring; empty: all are.
    pub from: Vec<u64>,
    /// The line of its first ring in the consumer's wake page.
    pub first_line: usize,
    /// By which of the channels that the consumer gave it is woken; `None` in the probe's own process.
    pub channel: Option<usize>,
    /// Where this consumer says how far it has read each ring, if their writer waits for readers.
    pub progress: Option<ReaderProgress>,
}

/// From the probe to one consumer.
#[derive(Default)]
pub struct Updates {
    untaken: Mutex<Untaken>,
    changed: Condvar,
    /// There are some that were not taken.
    is_changed: AtomicBool,
}

#[derive(Default)]
struct Untaken {
    updates: VecDeque<Update>,
    /// No more will come.
    is_over: bool,
}

/// A feed that a consumer did not take while its source came and went; each time that it had joined it.
pub struct LetGo {
    /// Of this source.
    pub source: SourceId,
    /// Which one.
    pub feed: FeedId,
    /// The frames in its rings.
    pub frames: u64,
}

impl Updates {
    /// One more. Gives the feeds that this makes one too many.
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

    /// No more will come.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    /// Those that have come since this was asked last.
    #[must_use]
    pub fn take(&self) -> Vec<Update> {
        if !self.is_changed.load(Ordering::Relaxed) {
            return Vec::new();
        }
        // Before they are taken: an update that comes in between is not missed, and at worst causes one
        // needless look.
        self.is_changed.swap(false, Ordering::Acquire);
        self.lock().updates.drain(..).collect()
    }

    /// The next one, once it is there; `None` after `limit`, and when none is left and no more will come.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> Option<Update> {
        let waits = |untaken: &mut Untaken| untaken.updates.is_empty() && !untaken.is_over;
        let waited = self.changed.wait_timeout_while(self.lock(), limit, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.updates.pop_front()
    }

    /// Waits until a feed is joined, at most `limit`; whatever else has come by then is passed over.
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

    /// Every step leaves it whole.
    fn lock(&self) -> MutexGuard<'_, Untaken> {
        self.untaken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A feed that was joined and left, neither of which was taken.
struct Past<'a> {
    joined: &'a Joined,
    /// How far it is to be read.
    until: &'a [u64],
    /// Where among the updates it says that it was joined, and that it was left. One that says that it was left when it
    /// was joined before, and that was taken, is none of these.
    places: [usize; 2],
}

impl Untaken {
    /// This feed was left. If it was not even taken, the oldest life of its source may be one too many.
    fn let_oldest_go(&mut self, left: FeedId) -> Vec<LetGo> {
        let Some(source) = self.joined().find(|joined| joined.feed == left).map(|of| of.source)
        else {
            return Vec::new();
        };
        let past = self.past(source);
        let mut lives: Vec<u64> = past.iter().map(|past| past.joined.life).collect();
        // They are in order.
        lives.dedup();
        if lives.len() <= PAST_LIVES_MAX {
            return Vec::new();
        }
        let (mut gone, mut told) = (Vec::new(), BTreeSet::new());
        for Past { joined, until, places } in past {
            if joined.life == lives[0] {
                // A ring that says nothing else is at its end.
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

    /// The feeds of a source that were joined and left again, each time.
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
