//! Another file: what it still allows goes on, and what it does not is closed.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use weir_plug::Who;
use weir_probe::FeedId;

use crate::board::{tell_gone, tell_moved};
use crate::config::Config;
use crate::daemon::{Daemon, check};
use crate::limits::RELAY_END_TIME_MAX;
use crate::moved::MovedFeed;
use crate::reader::{Closing, Reader, Reads};

/// What clients are told.
pub(crate) const CHANGED: &str = "the daemon's file has changed";

impl Daemon {
    /// Another file is in force from here on. Feeds that it allows as they are go on, without losing a frame. Those
    /// that it does not allow are closed; since nobody without the right is to see what comes into memory that he has
    /// mapped, others that read the same rings move to fresh ones: they are told, and find there what has come since.
    /// Gives how many were closed.
    ///
    /// # Errors
    /// A source that means nothing; the old file stays in force.
    pub fn reload(&self, config: Config) -> Result<usize, String> {
        for warning in check(&config, &self.resolve)? {
            self.journal.say(&warning);
        }
        let mut closings = Vec::new();
        let closed = self.put_in_force(config, &mut closings);
        // With nothing held: nobody who opens a feed waits for a guest's copy that hangs.
        let deadline = Instant::now() + RELAY_END_TIME_MAX;
        closings.into_iter().for_each(|closing| _ = closing.finish(deadline));
        Ok(closed)
    }

    /// Has this file in force, and tells all whom that concerns. Gives how many feeds are closed, which `closings`
    /// [finish](Closing::finish).
    fn put_in_force(&self, config: Config, closings: &mut Vec<Closing>) -> usize {
        let before = self.config();
        let _guests = self.guests.lock_changes();
        // Of all sources of the old file: one that nobody has opened yet may be opened at this moment.
        let names = before.sources.keys();
        let handing: Vec<Arc<RwLock<()>>> = names.map(|name| self.handing(name)).collect();
        let _alone: Vec<_> =
            handing.iter().map(|one| one.write().unwrap_or_else(PoisonError::into_inner)).collect();
        self.usage.set_limits(config.limits.clone());
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        let is_allowed = |who: &Who, name: &str| {
            let now = self.source(who, name);
            now.is_some_and(|now| before.sources.get(name).is_some_and(|old| now.keeps(old)))
        };
        let exposed = self.board.handed_unless(is_allowed);
        let waits_in_exposed = |feed: &MovedFeed| {
            let now = self.probe.feed_of(feed.claim.subscription);
            now.is_some_and(|(now, _)| exposed.contains(&now))
        };
        // A client that has not come yet cannot be told of a second move.
        self.close_moved(|feed| {
            is_allowed(&feed.who, &feed.asked.source) && !waits_in_exposed(feed)
        });
        let mut readers = self.board.readers();
        readers.retain(|reader| !reader.is_closed());
        let (allowed, denied): (Vec<_>, Vec<_>) =
            readers.into_iter().partition(|reader| is_allowed(&reader.who, &reader.source));
        let mut closed = denied.len();
        let mut close = |reader: &Arc<Reader>| {
            // First: that its rings are closed, which the probe tells, would be no reason.
            tell_gone(reader, Some(CHANGED));
            closings.extend(self.begin_close(reader));
        };
        // A guest's subscription ends first: its copy would follow the feed to fresh rings.
        denied.iter().filter(|denied| is_guest(denied)).for_each(&mut close);
        let mut told: Vec<Arc<Reader>> = Vec::new();
        for feed in with_siblings(exposed, &allowed) {
            let of = |reader: &&Arc<Reader>| reader.feed() == feed;
            let others: Vec<&Arc<Reader>> = allowed.iter().filter(of).collect();
            // One that is closed just now cannot speak for the others.
            let is_moved = others.iter().any(|other| self.renew(other, feed));
            denied.iter().filter(of).filter(|denied| !is_guest(denied)).for_each(&mut close);
            for other in others {
                // A guest reads on where it is: its copy has followed. One that is being opened has none yet.
                if is_moved && is_guest(other) && other.is_copied() {
                    self.follow(other);
                } else if is_moved && !is_guest(other) {
                    self.keep_for(other);
                    told.push(Arc::clone(other));
                } else {
                    close(other);
                    closed += 1;
                }
            }
        }
        closings.extend(self.change_guests());
        self.guests.all().iter().for_each(|guest| guest.session.tell_of_sources());
        // A client that is told opens all of its feeds again: they wait by now.
        told.iter().for_each(|reader| tell_moved(reader));
        closed
    }

    /// Has those that read these rings read fresh ones instead, from one frame to the next. `false` if the engine
    /// cannot; then nobody may read the rings any more.
    fn renew(&self, reader: &Reader, feed: FeedId) -> bool {
        let subscription = reader.claim.subscription;
        let withdraw = || {
            // The probe moves all but a consumer that must not see another frame: this one, which nobody is.
            let consumer = self.probe.add_consumer(reader.reads().rings.len())?;
            self.probe.attach(consumer.id, subscription)?;
            self.probe.withdraw(consumer.id)
        };
        let withdrawn = withdraw();
        let now = self.probe.feed_of(subscription).map(|(now, _)| now);
        withdrawn.is_ok() && now.is_some_and(|now| now != feed)
    }

    /// Accounts a guest's feed by the rings that it has moved to. Those of before are closed.
    fn follow(&self, reader: &Reader) {
        let subscription = reader.claim.subscription;
        if let Some((fresh, _)) = self.probe.feed_of(subscription) {
            self.board.moved(reader, fresh, self.probe.rings_of(subscription), None, false);
        }
    }

    /// The same if the feed has got rings of its own by a change. Those of before are read on by others, so the count
    /// of the feed's frames in them is not exact.
    pub(crate) fn follow_change(&self, reader: &Reader) {
        let (subscription, before) = (reader.claim.subscription, reader.feed());
        let now = self.probe.feed_of(subscription).filter(|(now, _)| *now != before);
        if let Some((fresh, _)) = now {
            let ledgers = self.ledgers_of(&[reader.claim]).unwrap_or_default();
            let (last, rings) = (ledgers.get(&before), self.probe.rings_of(subscription));
            self.board.moved(reader, fresh, rings, last, true);
        }
    }

    /// Closes a client's feed, and keeps its subscription until the client comes for it.
    fn keep_for(&self, reader: &Arc<Reader>) {
        let end = |reads: &Reads| (self.board.closed(reads.feed).flatten(), true);
        // The client may have closed it just now.
        if let Some(closing) = reader.begin_close(end) {
            // A process has no copy that could be waited for.
            closing.finish(Instant::now());
            if let Some((fresh, _)) = self.probe.feed_of(reader.claim.subscription) {
                // Its frames are this client's from the first one on; who joins begins later.
                self.board.hand(fresh, &reader.who, &reader.source);
            }
            let (who, asked) = (reader.who.clone(), reader.asked_now());
            self.moved.add(MovedFeed::new(who, asked, reader.claim));
        }
    }

    /// Whether a client is to come for these rings.
    pub(crate) fn is_waited_for(&self, feed: FeedId) -> bool {
        let reads = |moved: &MovedFeed| self.probe.feed_of(moved.claim.subscription);
        self.moved.any(|moved| reads(moved).is_some_and(|(own, _)| own == feed))
    }

    /// Closes moved feeds that nobody has come for in time. Gives when the next is due.
    pub fn close_unclaimed(&self) -> Option<Instant> {
        self.close_moved(|_| true)
    }

    fn close_moved(&self, keeps: impl Fn(&MovedFeed) -> bool) -> Option<Instant> {
        let (gone, next) = self.moved.take_unless(keeps);
        for feed in gone {
            self.leave(&feed.asked.source, feed.claim);
        }
        next
    }
}

fn is_guest(reader: &Reader) -> bool {
    matches!(reader.who, Who::Guest(_))
}

/// These rings, and those of the other feeds that their readers have of the same source: a client opens all of them
/// again, or none, and so none loses a frame. Guests open none again.
fn with_siblings(mut feeds: BTreeSet<FeedId>, readers: &[Arc<Reader>]) -> BTreeSet<FeedId> {
    let readers: Vec<_> = readers.iter().filter(|reader| !is_guest(reader)).collect();
    loop {
        let moved = readers.iter().filter(|reader| feeds.contains(&reader.feed()));
        let moved: Vec<(u64, &str)> = moved.map(|reader| reader.owner()).collect();
        let siblings = readers.iter().filter(|reader| moved.contains(&reader.owner()));
        let before = feeds.len();
        feeds.extend(siblings.map(|reader| reader.feed()).collect::<Vec<_>>());
        if feeds.len() == before {
            return feeds;
        }
    }
}

#[cfg(test)]
mod tests;
