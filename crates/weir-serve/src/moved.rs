//! Feeds that were moved to fresh rings and wait until their clients open them again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_client::protocol::Open;
use weir_plug::Who;

use crate::limits::MOVED_FEEDS_WAIT_MAX;
use crate::slots::Claim;

/// Subscriptions whose clients were told to open them again.
#[derive(Default)]
pub struct Moved(Mutex<Vec<MovedFeed>>);

/// A subscription that is kept until its client opens it again.
#[derive(Clone, Debug)]
pub struct MovedFeed {
    /// Its client.
    pub who: Who,
    /// The client's request, with the filter that it set last.
    pub asked: Open,
    /// Its subscription.
    pub claim: Claim,
    until: Instant,
}

impl MovedFeed {
    /// The feed of this client. Its time to open it again begins now.
    #[must_use]
    pub fn new(who: Who, asked: Open, claim: Claim) -> MovedFeed {
        MovedFeed { who, asked, claim, until: Instant::now() + MOVED_FEEDS_WAIT_MAX }
    }

    /// Whether the client asks for this feed. Its number may differ, because a client chooses a new
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

    /// Gives a process the feed that is kept for it, if it asks for exactly the same.
    #[must_use]
    pub fn take(&self, who: &Who, asked: &Open) -> Option<MovedFeed> {
        let mut all = self.lock();
        let at = all.iter().position(|feed| feed.is_of(who, asked))?;
        Some(all.remove(at))
    }

    /// Whether `is_so` is true for any kept feed.
    #[must_use]
    pub fn any(&self, is_so: impl Fn(&MovedFeed) -> bool) -> bool {
        self.lock().iter().any(is_so)
    }

    /// The subscriptions of kept feeds for which `is_so` is true.
    #[must_use]
    pub fn claims(&self, is_so: impl Fn(&MovedFeed) -> bool) -> Vec<(String, Claim)> {
        let all = self.lock();
        let such = all.iter().filter(|feed| is_so(feed));
        such.map(|feed| (feed.asked.source.clone(), feed.claim)).collect()
    }

    /// Removes the feeds whose time is over, and those that `keeps` refuses. Gives them, and the
    /// time at which the next one's time is over.
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
