//! Controls the feeds of a daemon's source.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_client::ending::{EndReason, Ending};
use weir_client::protocol::{self, Open, Opened};
use weir_client::{ClientError, Connection, error_text};
use weir_frame::shard::Shard;
use weir_plug::PlugError;
use weir_plug::message::{BUSY, RpcError};
use weir_ring::Ledger;
use weir_ring::wake::Waker;

use super::feed::{HostFeed, HostSleeper, ledger_of, lock};
use crate::error::CaptureError;
use crate::feed::change::Change;
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
use crate::feed::direction::Direction;
use crate::feed::location::FilterLocation;
use crate::feed::{Feed, Sampling};
use weir_client::Address;

/// Feeds of one source of a daemon.
pub(super) struct HostControl {
    connection: Connection,
    path: PathBuf,
    address: Address,
    /// Whether feeds have rings of their own, so that they can be changed.
    own: bool,
    feeds: Mutex<BTreeMap<FeedSlot, Arc<HostFeed>>>,
    /// The end of whichever feed ends first. All feeds belong to one source, and are reopened together.
    ending: Arc<Ending>,
    next: AtomicU32,
    /// Whether the thread that waits for the end must return.
    is_woken: AtomicBool,
}

impl HostControl {
    pub(super) fn new(
        connection: Connection,
        path: PathBuf,
        address: Address,
        own: bool,
    ) -> HostControl {
        let (feeds, next) = (Mutex::default(), AtomicU32::new(0));
        let (ending, is_woken) = (Arc::default(), AtomicBool::new(false));
        HostControl { connection, path, address, own, feeds, ending, next, is_woken }
    }

    /// Returns the daemon's answer for the first feed.
    pub(super) fn first_opened(&self) -> Option<Opened> {
        lock(&self.feeds).values().next().map(|feed| feed.remote.opened().clone())
    }

    /// Returns the error for a refusal by the daemon.
    pub(super) fn refused(&self, reason: String) -> CaptureError {
        CaptureError::Daemon { feed: self.address.to_string(), path: self.path.clone(), reason }
    }

    /// Returns the error for a feed that the daemon has closed.
    pub(super) fn closed(&self, reason: String) -> CaptureError {
        CaptureError::FeedClosed { feed: self.address.to_string(), path: self.path.clone(), reason }
    }

    fn failed(&self, error: ClientError) -> CaptureError {
        match error {
            ClientError::Ring(error) => error.into(),
            ClientError::Plug(PlugError::Refused(error)) if error.code == BUSY => {
                let (feed, path) = (self.address.to_string(), self.path.clone());
                CaptureError::DaemonBusy { feed, path, reason: error.message }
            }
            // The daemon ended during the request. This is reported as if it had ended before.
            cause @ ClientError::Plug(PlugError::Closed) => {
                CaptureError::NoDaemon { path: self.path.clone(), cause }
            }
            error => self.refused(error_text(&error)),
        }
    }

    fn feed(&self, slot: FeedSlot) -> Result<Arc<HostFeed>, CaptureError> {
        lock(&self.feeds).get(&slot).cloned().ok_or(CaptureError::NoFeed)
    }

    /// Waits for the end of any of the feeds, for at most `limit`.
    pub(super) fn wait_for_end(&self, limit: Duration) -> Option<EndReason> {
        self.ending.wait(limit, || self.is_woken.load(Ordering::Acquire))
    }

    /// Closes all feeds.
    pub(super) fn stop(&self) {
        let feeds: Vec<Arc<HostFeed>> = lock(&self.feeds).values().cloned().collect();
        feeds.iter().for_each(|feed| feed.stop());
    }
}

impl FeedControl for HostControl {
    fn feeds(&self) -> Vec<FeedHandle> {
        lock(&self.feeds).iter().map(|(slot, feed)| feed.handle(*slot)).collect()
    }

    fn add(&self, feed: Feed) -> Result<FeedHandle, CaptureError> {
        let (sample, flows) = match feed.sampling {
            Sampling::All => (None, None),
            Sampling::OneIn(one_in) => (Some(one_in), None),
            Sampling::FlowsOneIn(one_in) => (None, Some(one_in.get())),
        };
        let open = Open {
            feed: 0,
            source: self.address.source.clone(),
            filter: feed.filter.as_ref().map(|filter| filter.text.clone()).unwrap_or_default(),
            snaplen: Some(feed.snaplen),
            direction: match feed.direction {
                Direction::In => protocol::Direction::In,
                Direction::Out => protocol::Direction::Out,
                Direction::Both => protocol::Direction::Both,
            },
            part: part_of(&feed).or_else(|| self.address.part.clone()),
            sample,
            flows,
            own: self.own,
            // The name is only needed for changes, and a feed without rings of its own cannot be changed.
            name: Some(feed.name).filter(|name| self.own && !name.is_empty()),
        };
        let opened = self.connection.open_feed_with(&open, Arc::clone(&self.ending));
        let remote = opened.map_err(|error| self.failed(error))?;
        let slot = FeedSlot::new(self.next.fetch_add(1, Ordering::Relaxed));
        let feed = Arc::new(HostFeed { remote, state: Mutex::default() });
        let handle = feed.handle(slot);
        lock(&self.feeds).insert(slot, feed);
        Ok(handle)
    }

    fn remove(&self, slot: FeedSlot) -> Result<Ledger, CaptureError> {
        let feed = lock(&self.feeds).remove(&slot).ok_or(CaptureError::NoFeed)?;
        feed.stop();
        let ledger = lock(&feed.state).latest.clone();
        Ok(ledger)
    }

    fn replace_rings(&self, _: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        Err(CaptureError::Options(
            "the rings of a daemon's feed are the daemon's; close the feed and open it again"
                .into(),
        ))
    }

    fn change(&self, slot: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        let feed = self.feed(slot)?;
        let changed = match change {
            Change::Filter(filter) => {
                feed.remote.set_filter(filter.as_ref().map_or("", |filter| &filter.text))
            }
            Change::Block { remove, add } => {
                let texts = |entries: Vec<_>| -> Vec<String> {
                    entries.iter().map(weir_filter::block::Entry::to_string).collect()
                };
                feed.remote.block(&texts(add), &texts(remove))
            }
        };
        match changed {
            // The feed has left its rings, and the rings to which it moves are not open yet.
            Err(ClientError::Plug(PlugError::Refused(error)))
                if feed.remote.ending().reason() == Some(EndReason::Moved) =>
            {
                let error = RpcError::new(BUSY, error.message);
                Err(self.failed(ClientError::Plug(PlugError::Refused(error))))
            }
            other => other.map(|()| FilterLocation::Nowhere).map_err(|error| self.failed(error)),
        }
    }

    fn attach(
        &self,
        slot: FeedSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<WakerSlot, CaptureError> {
        let feed = self.feed(slot)?;
        let (lines, rings) = (waker.lines(), feed.remote.rings().len());
        if lines < first_line + rings {
            return Err(CaptureError::NarrowWaker { lines, first_line, rings });
        }
        let number = {
            let descriptors = waker.descriptors()?;
            feed.remote.attach(&descriptors, first_line).map_err(|error| self.failed(error))?
        };
        let mut state = lock(&feed.state);
        let slot = WakerSlot::new(state.next);
        state.next += 1;
        let positions = waker.into_positions();
        state.sleepers.insert(slot, HostSleeper { number, positions, first_line });
        Ok(slot)
    }

    fn detach(&self, slot: FeedSlot, waker: WakerSlot) {
        let Ok(feed) = self.feed(slot) else { return };
        let sleeper = {
            let mut state = lock(&feed.state);
            let sleeper = state.sleepers.remove(&waker);
            // Note the position before the feed can stop, so that its final ledger includes the frames that were read.
            sleeper.iter().for_each(|sleeper| feed.note_read(sleeper));
            sleeper
        };
        // Errors do not matter: a daemon that has ended does not wake any consumer.
        sleeper.into_iter().for_each(|sleeper| drop(feed.remote.detach(sleeper.number)));
    }

    fn ledger(&self, slot: FeedSlot) -> Result<Ledger, CaptureError> {
        let feed = self.feed(slot)?;
        let mut state = lock(&feed.state);
        if state.end.is_none()
            && let Ok(Some(ledger)) = feed.remote.ledger()
        {
            state.latest = ledger_of(ledger);
        }
        Ok(state.latest.clone())
    }

    fn wake(&self) {
        self.is_woken.store(true, Ordering::Release);
        self.ending.wake();
    }

    fn ends(&self, slot: FeedSlot) -> Option<Vec<u64>> {
        let feed = self.feed(slot).ok()?;
        let state = lock(&feed.state);
        state.end.clone().flatten()
    }
}

/// Returns the daemon's name for the part of the source's frames that a feed takes; `None`: all frames.
///
/// Only feeds of a broker take parts; the broker's sources are whole.
fn part_of(feed: &Feed) -> Option<String> {
    match feed.queue {
        Some(queue) => Some(format!("q{queue}")),
        None => (feed.shard != Shard::WHOLE).then(|| feed.shard.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_names_its_own_part() {
        let mut feed = Feed::default();
        assert_eq!(part_of(&feed), None);
        feed.shard = Shard::new(2, 4).unwrap();
        assert_eq!(part_of(&feed).as_deref(), Some("2/4"));
        feed.queue = Some(3);
        assert_eq!(part_of(&feed).as_deref(), Some("q3"));
    }
}
