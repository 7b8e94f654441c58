//! Implements [`FeedControl`] for `bpf`.

use std::sync::Arc;

use weir_ring::Ledger;
use weir_ring::wake::Waker;

use super::Hook;
use super::plan::no_place_by_queue;
use super::shared::{By, Own, Shared};
use crate::error::CaptureError;
use crate::feed::change::Change;
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
use crate::feed::direction::Direction;
use crate::feed::feeds::check_lines;
use crate::feed::interfaces::InterfaceLedger;
use crate::feed::location::FilterLocation;
use crate::feed::{FEEDS_MAX, Feed};
use crate::setup::Setup;

/// A reference to the shared state of the source.
pub(super) struct BpfControl(pub(super) Arc<Shared>);

impl FeedControl for BpfControl {
    fn feeds(&self) -> Vec<FeedHandle> {
        self.0.handles()
    }

    fn add(&self, mut feed: Feed) -> Result<FeedHandle, CaptureError> {
        let shared = &*self.0;
        shared.setup.admit(&mut feed)?;
        if shared.options.hook == Hook::Xdp {
            if feed.direction == Direction::Out {
                return Err(CaptureError::Options("XDP sees received frames only".into()));
            }
            feed.direction = Direction::Both;
        } else {
            Setup::admit_direction(shared.setup.direction(), &feed)?;
        }
        let mut state = shared.state_for_change();
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        if shared.served().feeds.len() >= FEEDS_MAX {
            return Err(CaptureError::Options(format!(
                "a source has {FEEDS_MAX} feeds at most; remove one first"
            )));
        }
        if let Some(place) = shared.join_at_hook(&mut state, &feed)? {
            let (slot, location) = (state.next_feed(), FilterLocation::Hook);
            let own = Own { slot, location, by: By::Hook(place) };
            let mut served = shared.served();
            let handle = shared.handle(&served, &own);
            served.feeds.push(own);
            return Ok(handle);
        }
        if feed.queue.is_some() && shared.members.is_none() {
            return Err(no_place_by_queue(&shared.setup.feeds[0].interface.name));
        }
        shared.open_relay(&mut state)?;
        let slot = state.next_feed();
        let relay = {
            let served = shared.served();
            // Bring the counts up to date: those of the feed begin now.
            shared.count_for_relay(&served);
            served.relay().control()
        };
        let joined = relay.insert(slot, feed);
        if let Ok(handle) = &joined {
            let own = Own { slot, location: handle.location, by: By::Relay };
            shared.served().feeds.push(own);
        }
        shared.shut_relay(&mut state);
        joined
    }

    fn wake(&self) {
        self.0.interrupt.raise();
    }

    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let shared = &*self.0;
        let (by, relay) = shared.served().of(feed)?;
        match (by, relay) {
            (By::Hook(place), _) => shared.leave_hook(feed, place),
            (By::Relay, Some(relay)) => {
                let mut state = shared.state_for_change();
                shared.count_for_relay(&shared.served());
                let ledger = relay.remove(feed)?;
                shared.served().feeds.retain(|own| own.slot != feed);
                shared.shut_relay(&mut state);
                Ok(ledger)
            }
            (By::Relay, None) => unreachable!("a feed of the relay's has one"),
        }
    }

    fn replace_rings(&self, feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        let shared = &*self.0;
        let mut state = shared.state_for_change();
        let (by, relay) = shared.served().of(feed)?;
        let relay = match (by, relay) {
            (By::Hook(place), _) => return shared.replace_at_hook(&mut state, feed, place),
            (By::Relay, relay) => relay.expect("a feed of the relay's has one"),
        };
        let slot = state.next_feed();
        shared.count_for_relay(&shared.served());
        let replaced = relay.replace(feed, slot)?;
        if let Some(own) = shared.served().feeds.iter_mut().find(|own| own.slot == feed) {
            own.slot = slot;
        }
        Ok(replaced)
    }

    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        self.0.setup.check_changes()?;
        let (by, relay) = self.0.served().of(feed)?;
        let location = match (by, relay) {
            (By::Relay, Some(relay)) => relay.change(feed, change)?,
            (By::Hook(place), _) => self.0.change_at_hook(feed, place, change)?,
            (By::Relay, None) => unreachable!("a feed of the relay's has one"),
        };
        let mut served = self.0.served();
        let at = served.find(feed)?;
        served.feeds[at].location = location;
        Ok(location)
    }

    fn attach(
        &self,
        feed: FeedSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<WakerSlot, CaptureError> {
        check_lines(&waker, first_line, self.0.cpus)?;
        let mut state = self.0.state();
        let slot = WakerSlot::new(state.wakers_ever);
        let mut served = self.0.served();
        let at = served.find(feed)?;
        match served.feeds[at].by {
            By::Hook(place) => {
                self.0.add_waker(&mut served.places[place], slot, waker, first_line)?;
            }
            By::Relay => {
                let control = served.relay().control();
                drop(served);
                control.attach_as(feed, slot, &waker, first_line)?;
            }
        }
        state.wakers_ever += 1;
        Ok(slot)
    }

    fn detach(&self, feed: FeedSlot, waker: WakerSlot) {
        let mut served = self.0.served();
        let Ok(at) = served.find(feed) else { return };
        match served.feeds[at].by {
            By::Hook(place) => drop(served.places[place].wakers.remove(waker)),
            By::Relay => {
                let control = served.relay().control();
                drop(served);
                control.detach(feed, waker);
            }
        }
    }

    fn ledger(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let served = self.0.served();
        let own = &served.feeds[served.find(feed)?];
        match own.by {
            By::Hook(place) => Ok(self.0.ledger_of(&served, place)),
            By::Relay => served.relay().control().ledger(feed),
        }
    }

    fn interfaces(&self, feed: FeedSlot) -> Result<Vec<InterfaceLedger>, CaptureError> {
        let served = self.0.served();
        match served.feeds[served.find(feed)?].by {
            By::Hook(place) => Ok(self.0.interface_ledgers(&served, place)),
            By::Relay => Ok(Vec::new()),
        }
    }
}
