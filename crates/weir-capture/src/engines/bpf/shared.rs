//! What the source's thread and those that change its feeds have in common.
//!
//! Two locks. `state` is held throughout a change, which may take as long as loading a program; the source's thread takes it
//! at its start and stop only. `served` is held for moments, by everybody.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_filter::block::Entry;
use weir_ring::geometry::WriterWord;
use weir_ring::wake::Waker;
use weir_ring::{Ledger, Mapping, Ring};

use super::BpfOptions;
use super::attach::{self, Attachment};
use super::block::Blocks;
use super::control::Control;
use super::plan::Plan;
use super::program::{AtHook, Programs};
use super::relay::Relay;
use crate::error::{CaptureError, with_causes};
use crate::feed::Feed;
use crate::feed::change::{Change, change_list};
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
use crate::feed::counts::count_written;
use crate::feed::feeds::{check_lines, own_notify};
use crate::feed::location::FilterLocation;
use crate::feed::wakers::Wakers;
use crate::kernel::interface::Interface;
use crate::kernel::rcu;
use crate::setup::Setup;

/// What an opened source is made of.
pub(super) struct Parts {
    pub(super) interface: Interface,
    pub(super) options: BpfOptions,
    pub(super) setup: Setup,
    pub(super) plan: Plan,
    /// What the programs write: the feeds at the hook, and what the relay reads.
    pub(super) at_hook: Vec<Feed>,
    pub(super) blocks: Option<Blocks>,
    /// The rings of these, one after the other.
    pub(super) written: Vec<Ring<Mapping>>,
    pub(super) relay: Option<Relay>,
    pub(super) programs: Programs,
    pub(super) control: Control,
    pub(super) notify_fd: OwnedFd,
    pub(super) attachments: Vec<Attachment>,
    pub(super) locations: Vec<FilterLocation>,
}

/// Shared by the source and its control.
pub(super) struct Shared {
    pub(super) interface: Interface,
    pub(super) options: BpfOptions,
    pub(super) control: Control,
    pub(super) notify_fd: OwnedFd,
    pub(super) setup: Setup,
    /// Rings of one feed.
    pub(super) cpus: usize,
    state: Mutex<State>,
    served: Mutex<Served>,
}

/// What changes are made of.
pub(super) struct State {
    pub(super) programs: Programs,
    pub(super) attachments: Vec<Attachment>,
    pub(super) has_begun: bool,
    pub(super) is_over: bool,
    /// By place in the programs.
    at_hook: Vec<Feed>,
    blocks: Option<Blocks>,
    wakers_ever: u32,
}

/// Whom the programs serve, and what is told of it.
pub(super) struct Served {
    /// By place in the programs: the rings, and who sleeps on them.
    pub(super) places: Vec<Place>,
    feeds: Vec<Own>,
    pub(super) relay: Option<Relay>,
    count_chosen: bool,
    pub(super) missed_before: Option<u64>,
}

/// The rings of one feed that the programs write.
pub(super) struct Place {
    pub(super) rings: Vec<Ring<Mapping>>,
    pub(super) wakers: Wakers,
}

/// One feed.
struct Own {
    slot: FeedSlot,
    location: FilterLocation,
    by: By,
}

/// Who writes a feed's rings.
#[derive(Clone, Copy)]
enum By {
    /// The programs, in this place.
    Hook(usize),
    Relay,
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Shared {
        let Parts { plan, written, locations, at_hook, .. } = parts;
        let cpus = written.len() / at_hook.len();
        let place =
            |rings: &[Ring<Mapping>]| Place { rings: rings.to_vec(), wakers: Wakers::default() };
        let own = |(number, location): (usize, FilterLocation)| {
            let place = plan.at_hook.iter().position(|feed| *feed == number);
            let by = place.map_or(By::Relay, By::Hook);
            Own { slot: FeedSlot::new(number as u32), location, by }
        };
        let served = Served {
            places: written.chunks(cpus).map(place).collect(),
            feeds: locations.into_iter().enumerate().map(own).collect(),
            relay: parts.relay,
            count_chosen: parts.programs.count_chosen,
            missed_before: None,
        };
        let state = State {
            programs: parts.programs,
            attachments: parts.attachments,
            has_begun: false,
            is_over: false,
            at_hook,
            blocks: parts.blocks,
            wakers_ever: 0,
        };
        Shared {
            interface: parts.interface,
            options: parts.options,
            control: parts.control,
            notify_fd: parts.notify_fd,
            setup: parts.setup,
            cpus,
            state: Mutex::new(state),
            served: Mutex::new(served),
        }
    }

    /// Whole whoever panicked while holding it: its parts are replaced one at a time.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As above.
    pub(super) fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The feeds that there are.
    pub(super) fn handles(&self) -> Vec<FeedHandle> {
        let served = self.served();
        served.feeds.iter().map(|own| self.handle(&served, own)).collect()
    }

    fn handle(&self, served: &Served, own: &Own) -> FeedHandle {
        let rings = match own.by {
            By::Hook(place) => served.places[place].rings.clone(),
            By::Relay => served.relay().rings(own.slot),
        };
        // Without it a sleeper's threshold is found in time, too, by the source's regular look.
        let notify = own_notify(&self.notify_fd).ok();
        FeedHandle { slot: own.slot, rings, location: own.location, notify }
    }

    /// What the programs counted in a place.
    fn ledger_of(&self, served: &Served, place: usize) -> Ledger {
        let mut ledger = Ledger { offered: self.control.offered(), ..Ledger::default() };
        if served.count_chosen {
            ledger.filtered = self.control.judged().saturating_sub(self.control.chosen(place));
        }
        ledger.blocked = self.control.blocked(place);
        ledger.sampled = self.control.sampled(place);
        ledger.missed_before = served.missed_before;
        let rings = &served.places[place].rings;
        count_written(&mut ledger, rings);
        let unreadable = |ring: &Ring<_>| ring.writer_word(WriterWord::DropsUnreadable);
        ledger.drops.insert("reentry", self.control.reentry());
        ledger.drops.insert("unreadable", rings.iter().map(unreadable).sum());
        ledger
    }

    /// Brings what the relay knows of the hook's counts up to date.
    pub(super) fn count(&self, missed_before: Option<u64>) {
        let mut served = self.served();
        served.missed_before = missed_before;
        let Some(last) = served.places.len().checked_sub(1) else { return };
        if let Some(relay) = &served.relay {
            relay.count(&self.ledger_of(&served, last));
        }
    }

    /// Wakes whoever got what it waits for.
    pub(super) fn wake(&self) {
        for Place { rings, wakers } in &mut self.served().places {
            for (cpu, ring) in rings.iter().enumerate() {
                wakers.published(cpu, ring.frames_written());
            }
        }
    }

    /// Wakes whoever got what it waits for, and arms the doorbell for the next. False if there is more
    /// to answer already.
    pub(super) fn answer(&self) -> bool {
        let mut settled = true;
        for (place, Place { rings, wakers }) in self.served().places.iter_mut().enumerate() {
            for (cpu, ring) in rings.iter().enumerate() {
                let ordinal = ring.frames_written();
                wakers.published(cpu, ordinal);
                let threshold = wakers.earliest(cpu, ordinal);
                self.control.arm(place * self.cpus + cpu, threshold);
                // Frames may have come before the programs saw the new threshold. No second try here:
                // thresholds that are always one frame ahead would keep it trying for as long as frames come.
                settled &= ring.frames_written() < threshold;
            }
        }
        settled
    }

    /// Takes the programs off, closes all rings, and has the relay pass on what is left.
    pub(super) fn end(&self) -> Result<(), CaptureError> {
        let mut state = self.state();
        let was_over = std::mem::replace(&mut state.is_over, true);
        state.attachments.clear();
        let waited = rcu::synchronize();
        if was_over {
            return Ok(());
        }
        let mut served = self.served();
        let rings = 0..served.places.len() * self.cpus;
        let close = |ring| state.programs.close_ring(ring as u32).err();
        // All of them, whatever becomes of one: a reader waits for every close.
        let mut errors: Vec<CaptureError> = rings.filter_map(close).collect();
        errors.extend(waited.err());
        served.places.iter().for_each(|place| place.wakers.wake_all());
        if let Some(relay) = &mut served.relay {
            relay.control().end();
            errors.extend(relay.finish().err());
        }
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    /// Puts these programs in the place of those that run, at all sides or at none.
    fn exchange(&self, state: &mut State, programs: &AtHook) -> Result<(), CaptureError> {
        let State { attachments, .. } = state;
        let Err(error) = attach::exchange(&self.interface, programs, attachments) else {
            return Ok(());
        };
        // One of two sides may have the new one already.
        let back = attach::exchange(&self.interface, &state.programs.at, attachments);
        let Err(undoing) = back else { return Err(error) };
        Err(CaptureError::Options(format!(
            "{}; and so was the way back ({}): frames of one direction may be chosen by the new filter, until the \
             filter is changed again",
            with_causes(&error),
            with_causes(&undoing)
        )))
    }

    fn change_at_hook(&self, place: usize, change: Change) -> Result<FilterLocation, CaptureError> {
        let mut state = self.state();
        let filter = match change {
            Change::Filter(filter) => filter,
            Change::Block { remove, add } => {
                state.block(place, &remove, &add)?;
                return Ok(FilterLocation::Hook);
            }
        };
        let text = filter.as_ref().map_or_else(String::new, |filter| filter.text.clone());
        let mut feeds = state.at_hook.clone();
        feeds[place].filter = filter;
        let Some(programs) = state.programs.with_filters_of(&feeds) else {
            return Err(CaptureError::Options(format!(
                "the kernel does not take the filter '{text}' while the capture runs; the feed keeps the one that it \
                 has. A new capture can choose by it in user space"
            )));
        };
        if state.has_begun {
            self.exchange(&mut state, &programs)?;
        }
        state.programs.at = programs;
        // What still runs by the old one is over when this returns.
        rcu::synchronize()?;
        state.at_hook = feeds;
        Ok(FilterLocation::Hook)
    }
}

impl State {
    /// Changes the block list of a feed at the hook.
    fn block(&mut self, at: usize, remove: &[Entry], add: &[Entry]) -> Result<(), CaptureError> {
        let blocks = self.blocks.as_mut().expect("set up for changes");
        let mut wanted = blocks.list(at).clone();
        change_list(&mut wanted, remove, add)
            .map_err(|full| CaptureError::Options(full.to_string()))?;
        let before = blocks.list(at).clone();
        if let Err(error) = blocks.set(at, &wanted) {
            // What was taken away finds its room again.
            let error = with_causes(&error);
            return Err(CaptureError::Options(match blocks.set(at, &before) {
                Ok(()) => format!("{error}; the list is as it was"),
                Err(undoing) => format!(
                    "{error}; and so was the way back ({}): more may be blocked than the list says, until the \
                     capture is started again",
                    with_causes(&undoing)
                ),
            }));
        }
        // What looked the list up before is over when this returns.
        rcu::synchronize()
    }
}

impl Served {
    fn find(&self, slot: FeedSlot) -> Result<usize, CaptureError> {
        let at = self.feeds.iter().position(|own| own.slot == slot);
        at.ok_or(CaptureError::NoFeed)
    }

    fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("a feed of the relay's has one")
    }
}

/// What changes the source from any thread.
pub(super) struct BpfControl(pub(super) Arc<Shared>);

impl FeedControl for BpfControl {
    fn add(&self, _feed: Feed) -> Result<FeedHandle, CaptureError> {
        Err(CaptureError::Options("the bpf engine takes no feeds while it runs yet".into()))
    }

    fn remove(&self, _feed: FeedSlot) -> Result<Ledger, CaptureError> {
        Err(CaptureError::Options("the bpf engine removes no feeds while it runs yet".into()))
    }

    fn replace_rings(&self, _feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        Err(CaptureError::Options("the bpf engine replaces no rings while it runs yet".into()))
    }

    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        self.0.setup.check_changes()?;
        let (at, by, relay) = {
            let served = self.0.served();
            let at = served.find(feed)?;
            (at, served.feeds[at].by, served.relay.as_ref().map(Relay::control))
        };
        let location = match (by, relay) {
            (By::Relay, Some(relay)) => relay.change(feed, change)?,
            (By::Hook(place), _) => self.0.change_at_hook(place, change)?,
            (By::Relay, None) => unreachable!("a feed of the relay's has one"),
        };
        self.0.served().feeds[at].location = location;
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
            By::Hook(place) => served.places[place].wakers.add(slot, waker, first_line),
            By::Relay => {
                let control = served.relay().control();
                drop(served);
                control.attach_as(feed, slot, &waker, first_line)?;
            }
        }
        state.wakers_ever += 1;
        // Its thread looks at the new one's thresholds.
        weir_ring::wake::signal(std::os::fd::AsFd::as_fd(&self.0.notify_fd));
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
}
