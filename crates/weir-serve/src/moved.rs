//! Feeds that were moved to new rings, and wait until their clients open them again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_client::protocol::Open;
use weir_plug::Who;

use crate::limits::MOVED_FEEDS_WAIT_MAX;
use crate::slots::Claim;

/// The feeds whose clients were told to open them again.
#[derive(Default)]
pub struct Moved(Mutex<Vec<MovedFeed>>);

/// A feed that is kept until its client opens it again.
#[derive(Clone, Debug)]
pub struct MovedFeed {
    /// The client of the feed.
    pub who: Who,
    /// The client's request, with the filter that it set last.
    pub asked: Open,
    /// The subscription of the feed.
    pub claim: Claim,
    until: Instant,
}

impl MovedFeed {
    /// Creates a kept feed for this client. The time in which the client can open it again begins now.
    #[must_use]
    pub fn new(who: Who, asked: Open, claim: Claim) -> MovedFeed {
        MovedFeed { who, asked, claim, until: Instant::now() + MOVED_FEEDS_WAIT_MAX }
    }

    /// Tells whether the client asks for this feed. The number of the feed may differ, because a client chooses a new
    /// one each time.
    fn is_of(&self, who: &Who, asked: &Open) -> bool {
        let own = Open { feed: asked.feed, ..self.asked.clone() };
        let is_same = match (&self.who, who) {
            (Who::Process(one), Who::Process(other)) => {
                (one.uid, one.pid) == (other.uid, other.pid)
            }
            (one, other) => one == other,
        };
        is_same && own == *asked
    }
}

impl Moved {
    /// Keeps a feed for its client.
    pub fn add(&self, feed: MovedFeed) {
        self.lock().push(feed);
    }

    /// Returns the feed that is kept for a client, if the client makes exactly the same request. The feed is then no
    /// longer kept.
    #[must_use]
    pub fn take(&self, who: &Who, asked: &Open) -> Option<MovedFeed> {
        let mut all = self.lock();
        let at = all.iter().position(|feed| feed.is_of(who, asked))?;
        Some(all.remove(at))
    }

    /// Tells whether `is_so` is true for any kept feed.
    #[must_use]
    pub fn any(&self, is_so: impl Fn(&MovedFeed) -> bool) -> bool {
        self.lock().iter().any(is_so)
    }

    /// Returns the subscriptions of kept feeds for which `is_so` is true, with the names of their sources.
    #[must_use]
    pub fn claims(&self, is_so: impl Fn(&MovedFeed) -> bool) -> Vec<(String, Claim)> {
        let all = self.lock();
        let such = all.iter().filter(|feed| is_so(feed));
        such.map(|feed| (feed.asked.source.clone(), feed.claim)).collect()
    }

    /// Removes and returns the feeds whose time is over, and those that `keeps` rejects. Also returns when the time of
    /// the next feed is over.
    #[must_use]
    pub fn take_unless(
        &self,
        keeps: impl Fn(&MovedFeed) -> bool,
    ) -> (Vec<MovedFeed>, Option<Instant>) {
        let now = Instant::now();
        let mut all = self.lock();
        let gone = all.extract_if(.., |feed| feed.until <= now || !keeps(feed)).collect();
        (gone, all.iter().map(|feed| feed.until).min())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<MovedFeed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
