//! Applies a new configuration: feeds that it still allows continue, and the others are closed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use weir_plug::Who;
use weir_probe::FeedId;

use crate::board::{tell_gone, tell_moved};
use crate::check::check;
use crate::config::Config;
use crate::daemon::Daemon;
use crate::moved::MovedFeed;
use crate::reader::{Ending, Reader, Reads};

/// The reason for which clients' feeds are closed.
const CHANGED: &str = "the daemon's file has changed";

/// The changes to the feeds of one source that a new configuration causes.
#[derive(Default)]
struct SourceChange {
    /// Open rings that a client has mapped but may not read any more.
    exposed: BTreeSet<FeedId>,
    /// Feeds that wait for their clients to open them again, and are not kept any more.
    unclaimed: Vec<MovedFeed>,
    /// Open feeds of clients who may not have them any more.
    denied: Vec<Arc<Reader>>,
    /// Other open feeds.
    allowed: Vec<Arc<Reader>>,
}

impl Daemon {
    /// Applies a new configuration. Feeds that it allows unchanged continue without losing a frame. Feeds that it does
    /// not allow are closed. A client that has lost the right must not see new frames in memory that it has mapped: so
    /// other feeds on the same rings move to new rings. Their clients are notified, and find the later frames there.
    /// Returns the number of closed feeds, once the final counts of all of them are known.
    ///
    /// # Errors
    /// A source cannot be resolved. The old configuration stays in force.
    pub fn reload(&self, config: Config) -> Result<usize, String> {
        for warning in check(&config, &self.resolve)? {
            self.journal.say(&warning);
        }
        Ok(self.put_in_force(config))
    }

    /// Applies the configuration, and closes the feeds that it denies. Each source's feeds are closed on a separate
    /// thread, because ending a source can take seconds, and so can a guest's copy that hangs. Other threads do not
    /// wait for that: a source's [`handing`](Daemon::handing) lock is held only while its own subscriptions end.
    fn put_in_force(&self, config: Config) -> usize {
        let changing_guests = self.guests.lock_changes();
        let before = self.config();
        // All sources of the old configuration are locked, because a closed one may be about to be opened.
        let handing: Vec<_> =
            before.sources.keys().map(|name| (name, self.handing(name))).collect();
        let mut held = BTreeMap::new();
        for (name, lock) in &handing {
            held.insert(name.as_str(), lock.write().unwrap_or_else(PoisonError::into_inner));
        }
        self.usage.set_limits(config.limits.clone());
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        let changes = self.changes_since(&before);
        // All sources are locked, so guests that end cannot open another feed.
        self.change_guests();
        held.retain(|name, _| changes.contains_key(*name));
        let (changed, all_changed) = mpsc::channel();
        let close = |name: &str, change: &SourceChange, changed: Sender<String>| {
            let closing = self.change_source(change);
            // An error is possible only after a panic of the receiving thread.
            let _ = changed.send(name.to_owned());
            // Guests may change again once all senders are dropped.
            drop(changed);
            self.finish_all(&closing);
            closing.len()
        };
        let close = &close;
        thread::scope(|scope| {
            let (mut threads, mut begun) = (Vec::new(), Vec::new());
            for (name, change) in &changes {
                let sender = changed.clone();
                let thread = thread::Builder::new().name("reload".into());
                let thread = thread.spawn_scoped(scope, move || close(name, change, sender));
                match thread {
                    Ok(thread) => threads.push(thread),
                    // No thread can be created: these sources are changed one after the other.
                    Err(_) => begun.extend(self.change_source(change)),
                }
            }
            drop(changed);
            all_changed.iter().for_each(|name| _ = held.remove(&*name));
            drop((held, changing_guests));
            self.guests.all().iter().for_each(|guest| guest.session.tell_of_sources());
            self.finish_all(&begun);
            let join = |thread: ScopedJoinHandle<'_, usize>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            begun.len() + threads.into_iter().map(join).sum::<usize>()
        })
    }

    /// Returns the feeds that lose their rights by the current configuration, compared with `before`, by source name.
    /// The caller holds the [`handing`](Daemon::handing) locks of all sources.
    fn changes_since(&self, before: &Config) -> BTreeMap<String, SourceChange> {
        let now = self.config();
        let is_allowed = |who: &Who, name: &str| {
            let now = self.source(who, name);
            now.is_some_and(|now| before.sources.get(name).is_some_and(|old| now.keeps(old)))
        };
        // A guest is restarted if its connection settings have changed.
        let is_same_guest = |who: &Who| match who {
            Who::Guest(name) => now.guests.get(&**name) == before.guests.get(&**name),
            Who::Process(_) => true,
        };
        let mut changes: BTreeMap<String, SourceChange> = BTreeMap::new();
        for (name, exposed) in self.board.handed_unless(is_allowed) {
            changes.entry(name).or_default().exposed = exposed;
        }
        // A client that has not opened its moved feed yet cannot be notified of a second move.
        let (unclaimed, _) = self.moved.take_unless(|feed| {
            let now = self.probe.feed_of(feed.claim.subscription);
            let change = changes.get(&feed.asked.source);
            let is_exposed =
                now.zip(change).is_some_and(|((now, _), change)| change.exposed.contains(&now));
            is_allowed(&feed.who, &feed.asked.source) && !is_exposed
        });
        for feed in unclaimed {
            changes.entry(feed.asked.source.clone()).or_default().unclaimed.push(feed);
        }
        for reader in self.board.readers() {
            if reader.is_closed() {
                continue;
            }
            if !is_allowed(&reader.who, &reader.source) || !is_same_guest(&reader.who) {
                changes.entry(reader.source.clone()).or_default().denied.push(reader);
            } else if let Some(change) = changes.get_mut(&reader.source) {
                change.allowed.push(reader);
            }
        }
        changes
    }

    /// Closes the denied feeds, moves other feeds away from their rings, and notifies all affected clients. Returns the
    /// feeds whose closing has begun. Waits for the source, but not for copies of guests.
    fn change_source(&self, change: &SourceChange) -> Vec<Arc<Reader>> {
        let SourceChange { exposed, unclaimed, denied, allowed } = change;
        for feed in unclaimed {
            self.leave(&feed.asked.source, feed.claim);
        }
        let mut closing = Vec::new();
        let mut close = |reader: &Arc<Reader>| {
            // Sent first, because the probe's event about closed rings would give no reason.
            tell_gone(reader, Some(CHANGED));
            if self.begin_close(reader) {
                closing.push(Arc::clone(reader));
            }
        };
        // Guests' subscriptions end first, because otherwise their copies would follow the feed to the new rings.
        denied.iter().filter(|denied| is_guest(denied)).for_each(&mut close);
        let mut told: Vec<&Arc<Reader>> = Vec::new();
        for feed in with_siblings(exposed.clone(), allowed) {
            let of = |reader: &&Arc<Reader>| reader.feed() == feed;
            let others: Vec<&Arc<Reader>> = allowed.iter().filter(of).collect();
            // Each feed is tried, because a feed that is being closed cannot be moved.
            let is_moved = others.iter().any(|other| self.renew(other, feed));
            denied.iter().filter(of).filter(|denied| !is_guest(denied)).for_each(&mut close);
            for other in others {
                // A guest goes on reading its ring, because its copy has followed the feed. A feed that is being opened
                // has no copy yet.
                if is_moved && is_guest(other) && other.is_copied() {
                    self.follow(other);
                } else if is_moved && !is_guest(other) {
                    self.keep_for(other);
                    told.push(other);
                } else {
                    close(other);
                }
            }
        }
        // Feeds whose rings are closed already, because their source has ended.
        denied.iter().filter(|denied| !denied.is_closed()).for_each(close);
        // A client that is notified opens all of its feeds of this source again. By now all of them are kept for it.
        told.into_iter().for_each(|reader| tell_moved(reader));
        closing
    }

    /// Moves the readers of these rings to new rings, without losing a frame. Returns `false` if the engine cannot do
    /// that; then no client may read the rings any more.
    fn renew(&self, reader: &Reader, feed: FeedId) -> bool {
        let subscription = reader.claim.subscription;
        let withdraw = || {
            // The probe moves all readers of the rings, except a consumer that is withdrawn. So one is created and
            // withdrawn, which belongs to no client.
            let consumer = self.probe.add_consumer(reader.reads().rings.len())?;
            self.probe.attach(consumer.id, subscription)?;
            self.probe.withdraw(consumer.id)
        };
        let withdrawn = withdraw();
        let now = self.probe.feed_of(subscription).map(|(now, _)| now);
        withdrawn.is_ok() && now.is_some_and(|now| now != feed)
    }

    /// Continues the counts of a guest's feed in the rings to which the feed has moved. The previous rings are closed.
    fn follow(&self, reader: &Reader) {
        let subscription = reader.claim.subscription;
        if let Some((fresh, _)) = self.probe.feed_of(subscription) {
            self.board.moved(reader, fresh, self.probe.rings_of(subscription), None, false);
        }
    }

    /// Does the same for a feed that has got rings of its own by a change. Others still read the previous rings, so the
    /// count of the feed's frames in them is not exact.
    pub(crate) fn follow_change(&self, reader: &Reader) {
        let (subscription, before) = (reader.claim.subscription, reader.feed());
        let now = self.probe.feed_of(subscription).filter(|(now, _)| *now != before);
        if let Some((fresh, _)) = now {
            let ledgers = self.ledgers_of(&[reader.claim]).unwrap_or_default();
            let (last, rings) = (ledgers.get(&before), self.probe.rings_of(subscription));
            self.board.moved(reader, fresh, rings, last, true);
        }
    }

    /// Closes a client's feed, and keeps its subscription until the client opens it again.
    fn keep_for(&self, reader: &Arc<Reader>) {
        let end = |reads: &Reads| {
            let ledger = Some(self.board.closed(reads.feed).flatten());
            Ending { ledger, is_final: true }
        };
        // The client may have closed the feed already.
        if reader.begin_close(end) {
            // A process has no copy to wait for, and the ledger is known.
            reader.finish_close(Instant::now(), |_| None);
            if let Some((fresh, _)) = self.probe.feed_of(reader.claim.subscription) {
                // All frames in these rings belong to this client. Clients that join the rings begin later.
                self.board.hand(fresh, &reader.who, &reader.source);
            }
            let (who, asked) = (reader.who.clone(), reader.asked_now());
            self.moved.add(MovedFeed::new(who, asked, reader.claim));
        }
    }

    /// Tells whether a feed on these rings waits for its client.
    pub(crate) fn is_waited_for(&self, feed: FeedId) -> bool {
        let reads = |moved: &MovedFeed| self.probe.feed_of(moved.claim.subscription);
        self.moved.any(|moved| reads(moved).is_some_and(|(own, _)| own == feed))
    }

    /// Closes moved feeds that their clients have not opened in time. Returns when the time of the next feed is over.
    pub fn close_unclaimed(&self) -> Option<Instant> {
        let (gone, next) = self.moved.take_unless(|_| true);
        for feed in gone {
            self.leave(&feed.asked.source, feed.claim);
        }
        next
    }
}

fn is_guest(reader: &Reader) -> bool {
    matches!(reader.who, Who::Guest(_))
}

/// Adds to these rings the rings of their readers' other feeds of the same source: a client opens all of its feeds
/// again, or none, so that it loses no frames. Guests do not open feeds again.
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
