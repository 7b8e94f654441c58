//! What the probe has told: ledgers of feeds that were closed, and who is to hear that a source has ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::json;
use weir_capture::error::error_text;
use weir_plug::Peer;
use weir_probe::core::Event;
use weir_probe::{FeedId, ProbeEvent, SourceId};
use weir_ring::Ledger;

/// What the probe has told. It is kept for feeds and sources that a client has open, and not for others.
#[derive(Default)]
pub struct Board(Mutex<Told>);

#[derive(Default)]
struct Told {
    feeds: BTreeMap<FeedId, Feed>,
    members: Vec<Member>,
    /// Why sources failed, until they are closed.
    reasons: BTreeMap<SourceId, String>,
}

struct Feed {
    readers: usize,
    /// `Some` once it is closed; `Some(None)` if its ledger could not be read.
    closed: Option<Option<Ledger>>,
}

struct Member {
    source: SourceId,
    peer: Arc<Peer>,
    /// The client's number.
    feed: u64,
}

impl Board {
    /// Takes down what the probe tells. It gives no command, and waits for nobody.
    pub fn note(&self, event: ProbeEvent) {
        let mut told = self.lock();
        match event {
            Event::FeedClosed(_, feed, ledger) => {
                if let Some(known) = told.feeds.get_mut(&feed) {
                    known.closed = Some(ledger);
                }
            }
            Event::Failed(source, error) => {
                told.reasons.insert(source, error_text(&error));
            }
            Event::Closed(source) => {
                let reason = told.reasons.remove(&source);
                let reason = reason.unwrap_or_else(|| "its source has ended".into());
                told.members.retain(|member| {
                    let is_gone = member.source == source;
                    if is_gone {
                        let params = json!({ "feed": member.feed, "reason": reason });
                        // Whoever has gone needs not be told.
                        let _ = member.peer.notify("capture.gone", params, Vec::new());
                    }
                    !is_gone
                });
            }
            _ => {}
        }
    }

    /// A client reads this feed.
    pub fn watch(&self, feed: FeedId) {
        let new = || Feed { readers: 0, closed: None };
        self.lock().feeds.entry(feed).or_insert_with(new).readers += 1;
    }

    /// It reads it no more.
    pub fn unwatch(&self, feed: FeedId) {
        let mut told = self.lock();
        if let Some(known) = told.feeds.get_mut(&feed) {
            known.readers -= 1;
            if known.readers == 0 {
                told.feeds.remove(&feed);
            }
        }
    }

    /// `Some` once it is closed: its ledger.
    pub fn closed(&self, feed: FeedId) -> Option<Option<Ledger>> {
        self.lock().feeds.get(&feed)?.closed.clone()
    }

    /// The client is to hear when this source has ended.
    pub fn join(&self, source: SourceId, peer: &Arc<Peer>, feed: u64) {
        self.lock().members.push(Member { source, peer: Arc::clone(peer), feed });
    }

    /// It is not.
    pub fn leave(&self, peer: &Peer, feed: u64) {
        let is_it = |member: &Member| member.peer.number() == peer.number() && member.feed == feed;
        self.lock().members.retain(|member| !is_it(member));
    }

    fn lock(&self) -> MutexGuard<'_, Told> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
