//! The open feeds of clients, and the probe's events about their sources and rings.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_capture::error::error_text;
use weir_client::protocol::Gone;
use weir_plug::Who;
use weir_probe::core::Event;
use weir_probe::{FeedId, ProbeEvent, SourceId};
use weir_ring::{Ledger, Mapping, Ring};

use crate::reader::Reader;

/// The open feeds, and the messages that were sent about them.
#[derive(Default)]
pub struct Board(Mutex<State>);

#[derive(Default)]
struct State {
    readers: Vec<Arc<Reader>>,
    /// Ledgers of closed rings that a client still has open, or may be about to get; `None` if the ledger could not be
    /// read.
    closed: BTreeMap<FeedId, Option<Ledger>>,
    /// Closed rings that no client had open when they were closed, the oldest first.
    unclaimed: VecDeque<FeedId>,
    /// For rings that are not closed: the clients that have ever got them, and the source. A client that has mapped
    /// rings can see new frames in them, even after it has released the feed.
    handed: BTreeMap<FeedId, Vec<(Who, String)>>,
    /// The reasons why sources have failed. Kept until the sources are closed.
    reasons: BTreeMap<SourceId, String>,
    /// Sources that have ended. A client may be about to get a feed of such a source.
    ended: Vec<(SourceId, Option<String>)>,
}

/// Number of ended sources, and of closed rings, whose facts are kept.
const ENDED_MAX: usize = 64;

impl State {
    fn has_reader(&self, feed: FeedId) -> bool {
        self.readers.iter().any(|reader| reader.feed() == feed)
    }

    /// Removes the ledger of closed rings if no reader has them any more.
    fn forget(&mut self, feed: FeedId) {
        if !self.has_reader(feed) {
            self.closed.remove(&feed);
        }
    }

    fn hand(&mut self, feed: FeedId, who: &Who, source: &str) {
        if self.closed.contains_key(&feed) {
            return;
        }
        let handed = self.handed.entry(feed).or_default();
        if !handed.iter().any(|(other, of)| is_same(other, who) && of == source) {
            handed.push((who.clone(), source.to_owned()));
        }
    }
}

impl Board {
    /// Records an event of the probe. It sends no command and does not wait.
    pub fn note(&self, event: ProbeEvent) {
        let mut state = self.lock();
        match event {
            Event::FeedClosed(_, feed, ledger) => {
                state.closed.insert(feed, ledger);
                state.handed.remove(&feed);
                // A client may be about to get these rings: a source can end as soon as it has started.
                if !state.has_reader(feed) {
                    state.unclaimed.push_back(feed);
                    if state.unclaimed.len() > ENDED_MAX
                        && let Some(oldest) = state.unclaimed.pop_front()
                        && !state.has_reader(oldest)
                    {
                        state.closed.remove(&oldest);
                    }
                }
            }
            Event::Failed(source, error) => {
                state.reasons.insert(source, error_text(&error));
            }
            Event::Closed(source) => {
                let reason = state.reasons.remove(&source);
                let of_it = |reader: &&Arc<Reader>| reader.claim.source == source;
                for reader in state.readers.iter().filter(of_it) {
                    tell_gone(reader, reason.as_deref());
                }
                state.ended.push((source, reason));
                let surplus = state.ended.len().saturating_sub(ENDED_MAX);
                state.ended.drain(..surplus);
            }
            _ => {}
        }
    }

    /// Adds a client's feed. If its source has ended in the meantime, the client is notified.
    pub fn add(&self, reader: &Arc<Reader>) {
        let mut state = self.lock();
        let source = reader.claim.source;
        if let Some((_, reason)) = state.ended.iter().find(|(ended, _)| *ended == source) {
            tell_gone(reader, reason.as_deref());
        }
        state.hand(reader.feed(), &reader.who, &reader.source);
        state.readers.push(Arc::clone(reader));
    }

    /// Records that this client is about to get these rings.
    pub fn hand(&self, feed: FeedId, who: &Who, source: &str) {
        self.lock().hand(feed, who, source);
    }

    /// Tells whether any client has got these rings.
    #[must_use]
    pub fn was_handed(&self, feed: FeedId) -> bool {
        self.lock().handed.contains_key(&feed)
    }

    /// Returns open rings that a client has got which may not have them now, by source name. A guest never maps these
    /// rings, but only a copy.
    #[must_use]
    pub fn handed_unless(
        &self,
        may: impl Fn(&Who, &str) -> bool,
    ) -> BTreeMap<String, BTreeSet<FeedId>> {
        let state = self.lock();
        let is_denied =
            |(who, of): &&(Who, String)| matches!(who, Who::Process(_)) && !may(who, of);
        let mut denied: BTreeMap<String, BTreeSet<FeedId>> = BTreeMap::new();
        for (feed, all) in &state.handed {
            for (_, source) in all.iter().filter(is_denied) {
                denied.entry(source.clone()).or_default().insert(*feed);
            }
        }
        denied
    }

    /// Removes a feed that its client has released.
    pub fn remove(&self, reader: &Arc<Reader>) {
        let mut state = self.lock();
        state.readers.retain(|other| !Arc::ptr_eq(other, reader));
        state.forget(reader.feed());
    }

    /// Records that the probe has moved the subscription of a guest's feed to these rings. The previous rings are
    /// closed, unless `are_read_on` says that others still read them. `last` is the ledger of the previous rings so
    /// far, if it could be read. If it could not be read, and they are open, only frames that were captured are
    /// counted.
    pub fn moved(
        &self,
        reader: &Reader,
        feed: FeedId,
        rings: Vec<Ring<Mapping>>,
        last: Option<&Ledger>,
        are_read_on: bool,
    ) {
        let mut state = self.lock();
        let before = reader.feed();
        let closed = state.closed.get(&before).and_then(Option::as_ref);
        reader.moved(feed, rings, last.or(closed), !are_read_on);
        state.forget(before);
        state.hand(feed, &reader.who, &reader.source);
    }

    /// Returns the feeds of all clients, in the order in which they were opened.
    #[must_use]
    pub fn readers(&self) -> Vec<Arc<Reader>> {
        self.lock().readers.clone()
    }

    /// Returns the feeds of clients that read these rings and are not closed.
    #[must_use]
    pub fn readers_of(&self, feed: FeedId) -> Vec<Arc<Reader>> {
        let mut readers = self.readers();
        readers.retain(|reader| reader.feed() == feed && !reader.is_closed());
        readers
    }

    /// Returns the ledger of closed rings; `None` if they are open.
    #[must_use]
    pub fn closed(&self, feed: FeedId) -> Option<Option<Ledger>> {
        self.lock().closed.get(&feed).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells whether the daemon's file treats the two clients in the same way.
fn is_same(one: &Who, other: &Who) -> bool {
    match (one, other) {
        (Who::Process(one), Who::Process(other)) => {
            (one.uid, one.gid, &one.groups) == (other.uid, other.gid, &other.groups)
        }
        (one, other) => one == other,
    }
}

/// Notifies a client that a feed has ended, with the reason, unless the source has ended normally.
pub fn tell_gone(reader: &Reader, reason: Option<&str>) {
    let reason = reason.map(str::to_owned);
    reader.complete();
    tell(reader, Gone { feed: reader.number, reason, moved: false });
}

/// Notifies a client that its feed continues in other rings. The client gets them if it opens the same feed again.
pub fn tell_moved(reader: &Reader) {
    tell(reader, Gone { feed: reader.number, reason: None, moved: true });
}

fn tell(reader: &Reader, gone: Gone) {
    let params = serde_json::to_value(gone).unwrap_or_default();
    // An error means that the client has disconnected.
    let _ = reader.peer.notify("capture.gone", params, Vec::new());
}
