//! The feeds that clients have open, and the probe's events about their sources and rings.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_capture::error::error_text;
use weir_client::protocol::Gone;
use weir_plug::Who;
use weir_probe::core::Event;
use weir_probe::{FeedId, ProbeEvent, SourceId};
use weir_ring::{Ledger, Mapping, Ring};

use crate::reader::Reader;

/// The open feeds, and which messages about them were sent.
#[derive(Default)]
pub struct Board(Mutex<State>);

#[derive(Default)]
struct State {
    readers: Vec<Arc<Reader>>,
    /// Ledgers of rings that were closed and that somebody still has, or may be about to have: `None` if it could not
    /// be read.
    closed: BTreeMap<FeedId, Option<Ledger>>,
    /// Those that nobody had when they were closed, the oldest first.
    unclaimed: VecDeque<FeedId>,
    /// To whom rings were ever handed, and as which source, until they are closed: whoever has mapped them sees what
    /// comes into them, also after he has let go of the feed.
    handed: BTreeMap<FeedId, Vec<(Who, String)>>,
    /// Why sources failed, until they are closed.
    reasons: BTreeMap<SourceId, String>,
    /// Sources that ended while a client may be about to have a feed of them.
    ended: Vec<(SourceId, Option<String>)>,
}

/// Sources and rings that ended last, of which it is known how.
const ENDED_MAX: usize = 64;

impl State {
    fn has_reader(&self, feed: FeedId) -> bool {
        self.readers.iter().any(|reader| reader.feed() == feed)
    }

    /// A reader has released these rings.
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
    /// Records the probe's events. It gives no command, and waits for nobody.
    pub fn note(&self, event: ProbeEvent) {
        let mut state = self.lock();
        match event {
            Event::FeedClosed(_, feed, ledger) => {
                state.closed.insert(feed, ledger);
                state.handed.remove(&feed);
                // A client may be about to have it: a source can end as soon as it is started.
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

    /// A client has this feed. If its source has ended meanwhile, the client is told so.
    pub fn add(&self, reader: &Arc<Reader>) {
        let mut state = self.lock();
        let source = reader.claim.source;
        if let Some((_, reason)) = state.ended.iter().find(|(ended, _)| *ended == source) {
            tell_gone(reader, reason.as_deref());
        }
        state.hand(reader.feed(), &reader.who, &reader.source);
        state.readers.push(Arc::clone(reader));
    }

    /// Rings are kept for this client: it is about to be given them.
    pub fn hand(&self, feed: FeedId, who: &Who, source: &str) {
        self.lock().hand(feed, who, source);
    }

    /// Whether rings were handed to anybody.
    #[must_use]
    pub fn was_handed(&self, feed: FeedId) -> bool {
        self.lock().handed.contains_key(&feed)
    }

    /// Open rings that were handed to somebody who may not have them now, by the names of their sources. A guest has
    /// mapped a copy and never these.
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

    /// A client has released this feed.
    pub fn remove(&self, reader: &Arc<Reader>) {
        let mut state = self.lock();
        state.readers.retain(|other| !Arc::ptr_eq(other, reader));
        state.forget(reader.feed());
    }

    /// The probe has moved the subscription of a guest's feed to these rings: it is read on there. Those of before
    /// `are_read_on` by others, or are closed. `last` is their ledger so far, if it could be read; if not, and they are
    /// open, only frames that came are accounted.
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

    /// Those that clients have, in the order in which they were opened.
    #[must_use]
    pub fn readers(&self) -> Vec<Arc<Reader>> {
        self.lock().readers.clone()
    }

    /// Clients' feeds that read these rings and are not closed.
    #[must_use]
    pub fn readers_of(&self, feed: FeedId) -> Vec<Arc<Reader>> {
        let mut readers = self.readers();
        readers.retain(|reader| reader.feed() == feed && !reader.is_closed());
        readers
    }

    /// `Some` once the rings are closed: their ledger.
    #[must_use]
    pub fn closed(&self, feed: FeedId) -> Option<Option<Ledger>> {
        self.lock().closed.get(&feed).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a file cannot tell the two apart.
fn is_same(one: &Who, other: &Who) -> bool {
    match (one, other) {
        (Who::Process(one), Who::Process(other)) => {
            (one.uid, one.gid, &one.groups) == (other.uid, other.gid, &other.groups)
        }
        (one, other) => one == other,
    }
}

/// Tells a client that nothing more comes of a feed, and why, if not because its source came to its end.
pub fn tell_gone(reader: &Reader, reason: Option<&str>) {
    let reason = reason.map(str::to_owned);
    reader.complete();
    tell(reader, Gone { feed: reader.number, reason, moved: false });
}

/// Tells a client that its feed goes on in other rings, which it gets if it opens the same again.
pub fn tell_moved(reader: &Reader) {
    tell(reader, Gone { feed: reader.number, reason: None, moved: true });
}

fn tell(reader: &Reader, gone: Gone) {
    let params = serde_json::to_value(gone).unwrap_or_default();
    // If the client has gone, it need not be told.
    let _ = reader.peer.notify("capture.gone", params, Vec::new());
}
