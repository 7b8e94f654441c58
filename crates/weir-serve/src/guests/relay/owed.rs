//! The number of frames that a relay has to copy, by the counts of its source and not by its own reading.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_consumer::{Begin, FeedChange, FrameSource, JoinedFeed};
use weir_ring::wake::Sleeper;
use weir_ring::{Mapping, Ring};

/// The feeds that a relay has joined, and the numbers of their frames.
#[derive(Default)]
pub(super) struct Owed(Mutex<Feeds>);

#[derive(Default)]
struct Feeds {
    /// Number of frames of the feeds that were left. Their rings are not kept here, because that would keep their
    /// memory.
    frames_of_left: u64,
    /// Whether a left feed had a ring without an end ordinal that was still open, so that the number of frames is not
    /// known.
    is_uncertain: bool,
    joined: Vec<JoinedFeed>,
}

/// Returns the number of the feed's frames, if its rings are read up to the ordinals `until`, and rings without an
/// ordinal to their ends; `None` if such a ring is still open.
fn frames(feed: &JoinedFeed, until: &[u64]) -> Option<u64> {
    let from = match &feed.begin {
        Begin::At(ordinals) => ordinals.as_slice(),
        Begin::First | Begin::Oldest => &[],
    };
    let of_ring = |(at, ring): (usize, &Ring<Mapping>)| {
        let end = || ring.is_closed().then(|| ring.frames_written());
        let until = until.get(at).copied().or_else(end)?;
        Some(until.saturating_sub(from.get(at).copied().unwrap_or_default()))
    };
    feed.rings.iter().enumerate().map(of_ring).sum()
}

impl Owed {
    fn lock(&self) -> MutexGuard<'_, Feeds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, change: &FeedChange) {
        let mut feeds = self.lock();
        match change {
            FeedChange::Joined(feed) => feeds.joined.push(feed.clone()),
            FeedChange::Left { key, until } => {
                let Some(at) = feeds.joined.iter().position(|feed| feed.key == *key) else {
                    return;
                };
                match frames(&feeds.joined.remove(at), until) {
                    Some(frames) => feeds.frames_of_left += frames,
                    None => feeds.is_uncertain = true,
                }
            }
        }
    }

    /// Returns the number of frames of all feeds; `None` unless each feed was left or has closed its rings.
    pub(super) fn frames(&self) -> Option<u64> {
        let feeds = self.lock();
        let joined: u64 = feeds.joined.iter().map(|feed| frames(feed, &[])).sum::<Option<u64>>()?;
        (!feeds.is_uncertain).then_some(feeds.frames_of_left + joined)
    }
}

/// A source whose changes are recorded in an [`Owed`].
pub(super) struct Recorded {
    source: Box<dyn FrameSource>,
    owed: Arc<Owed>,
}

impl Recorded {
    pub(super) fn new(source: Box<dyn FrameSource>, owed: Arc<Owed>) -> Recorded {
        Recorded { source, owed }
    }
}

impl FrameSource for Recorded {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        let changes = self.source.take_changes();
        changes.iter().for_each(|change| self.owed.record(change));
        changes
    }

    fn sleeper(&self) -> &Sleeper {
        self.source.sleeper()
    }

    fn is_complete(&self) -> bool {
        self.source.is_complete()
    }
}
