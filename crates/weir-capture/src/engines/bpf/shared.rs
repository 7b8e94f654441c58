//! The state that the source's thread shares with the threads that change its feeds.
//!
//! There are two locks. `state` is held during a whole change, which may take as long as loading a program. The
//! source's thread waits for this lock only at its start and stop; when interfaces join by pattern, it only tries the
//! lock. `served` is held briefly, by any thread. A thread that takes both locks takes `state` first.

mod by_interface;
mod place;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use weir_ring::geometry::WriterWord;
use weir_ring::wake::Waker;
use weir_ring::{Ledger, Mapping, Ring};

pub(super) use place::HookPlace;

use super::BpfOptions;
use super::attach::Attachment;
use super::block::{Blocks, first_lists};
use super::confirm::Confirmer;
use super::control::{Came, Control};
use super::generations::{ALL, Generations, Words};
use super::interrupt::Interrupt;
use super::members::Members;
use super::plan::Plan;
use super::program::Programs;
use super::relay::Relay;
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::channel_poll::ChannelPoll;
use crate::feed::control::{FeedHandle, FeedSlot, WakerSlot};
use crate::feed::counts::count_written;
use crate::feed::feeds::Feeds;
use crate::feed::location::FilterLocation;
use crate::kernel::rcu;
use crate::setup::Setup;

/// The parts of which `Shared` is made.
pub(super) struct Parts {
    pub(super) options: BpfOptions,
    pub(super) setup: Setup,
    pub(super) plan: Plan,
    /// The feeds whose rings the programs write, by place. If there may be a relay, the last place is its place.
    pub(super) places: Vec<Option<Feed>>,
    pub(super) blocks: Option<Blocks>,
    /// The rings of the taken places, one after the other.
    pub(super) written: Vec<Ring<Mapping>>,
    pub(super) relay: Option<Relay>,
    pub(super) programs: Programs,
    pub(super) control: Control,
    pub(super) channels: Arc<ChannelPoll>,
    /// For a source that captures by pattern.
    pub(super) members: Option<Members>,
    pub(super) locations: Vec<FilterLocation>,
    pub(super) cpus: usize,
}

/// The state of a source and of its control.
pub(super) struct Shared {
    pub(super) options: BpfOptions,
    pub(super) control: Control,
    pub(super) channels: Arc<ChannelPoll>,
    /// Readable when the source's thread must return from its turn.
    pub(super) interrupt: Interrupt,
    pub(super) setup: Setup,
    /// The interfaces, for a source that captures by pattern.
    pub(super) members: Option<Members>,
    /// Number of rings of each feed.
    pub(super) cpus: usize,
    state: Mutex<State>,
    /// Whether an interface that joins or leaves waits for the end of a change of feeds.
    join_waits: AtomicBool,
    served: Mutex<Served>,
}

/// State that changes of the source modify.
pub(super) struct State {
    pub(super) programs: Programs,
    pub(super) attachments: Vec<Attachment>,
    pub(super) has_begun: bool,
    pub(super) is_over: bool,
    /// The feeds by their place in the programs; `None`: the place is free. If there may be a relay, the last place is
    /// its place.
    pub(super) places: Vec<Option<Feed>>,
    pub(super) blocks: Option<Blocks>,
    /// For each place, the number of its block list.
    pub(super) lists: Vec<u32>,
    pub(super) feeds_ever: u32,
    pub(super) wakers_ever: u32,
}

/// The rings that the programs write, with their wakers, and other state that any thread may read.
pub(super) struct Served {
    /// Rings and wakers, by their place in the programs.
    pub(super) places: Vec<HookPlace>,
    pub(super) generations: Generations,
    pub(super) feeds: Vec<Own>,
    pub(super) relay: Option<Relay>,
    count_chosen: bool,
    pub(super) missed_before: Option<u64>,
}

/// A feed of the source.
pub(super) struct Own {
    pub(super) slot: FeedSlot,
    pub(super) location: FilterLocation,
    pub(super) by: By,
}

/// The writer of a feed's rings.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// The programs, in this place.
    Hook(usize),
    Relay,
}

impl Shared {
    /// Creates the state of a source that is not attached yet.
    ///
    /// # Errors
    /// [`CaptureError::Os`]: no descriptors are left.
    pub(super) fn new(parts: Parts) -> Result<Shared, CaptureError> {
        let Parts { plan, written, locations, places, .. } = parts;
        let cpus = parts.cpus;
        let mut rings = written.chunks(cpus);
        let place = |feed: &Option<Feed>| {
            let rings = feed.as_ref().and_then(|_| rings.next()).unwrap_or_default().to_vec();
            let interface = feed.as_ref().map(|feed| feed.interface.clone()).unwrap_or_default();
            HookPlace { rings, interface, ..HookPlace::default() }
        };
        let own = |(number, location): (usize, FilterLocation)| {
            let place = plan.at_hook.iter().position(|feed| *feed == number);
            let by = place.map_or(By::Relay, By::Hook);
            Own { slot: FeedSlot::new(number as u32), location, by }
        };
        let served = Served {
            places: places.iter().map(place).collect(),
            generations: Generations::new(places.len(), taken_places(&places)),
            feeds: locations.into_iter().enumerate().map(own).collect(),
            relay: parts.relay,
            count_chosen: parts.programs.count_chosen,
            missed_before: None,
        };
        let state = State {
            programs: parts.programs,
            attachments: Vec::new(),
            has_begun: false,
            is_over: false,
            lists: first_lists(places.len()),
            places,
            blocks: parts.blocks,
            feeds_ever: parts.setup.feeds.len() as u32,
            wakers_ever: 0,
        };
        Ok(Shared {
            options: parts.options,
            control: parts.control,
            channels: parts.channels,
            interrupt: Interrupt::new()?,
            setup: parts.setup,
            members: parts.members,
            cpus,
            join_waits: AtomicBool::new(false),
            state: Mutex::new(state),
            served: Mutex::new(served),
        })
    }

    /// Locks the state. The data is valid even if a thread panicked while it held the lock: its parts are replaced one
    /// at a time.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state for a change of feeds. An interface that waits to join goes first: the lock is not fair, and
    /// continuous changes of feeds could keep the interface waiting.
    pub(super) fn state_for_change(&self) -> MutexGuard<'_, State> {
        let begin = Instant::now();
        while self.join_waits.load(Ordering::Acquire) && begin.elapsed() < GIVE_WAY {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.state()
    }

    /// Locks the state if no change is in progress. Otherwise returns `None`, and the next change of feeds waits, at
    /// most `GIVE_WAY`, until this caller has tried again.
    pub(super) fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        let state = match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        self.join_waits.store(state.is_none(), Ordering::Release);
        state
    }

    /// Locks the served state; the data is valid after a panic, as for [`state`](Shared::state).
    pub(super) fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns handles of the present feeds.
    pub(super) fn handles(&self) -> Vec<FeedHandle> {
        let served = self.served();
        served.feeds.iter().map(|own| self.handle(&served, own)).collect()
    }

    pub(super) fn handle(&self, served: &Served, own: &Own) -> FeedHandle {
        let rings = match own.by {
            By::Hook(place) => served.places[place].rings.clone(),
            By::Relay => served.relay().rings(own.slot),
        };
        FeedHandle { slot: own.slot, rings, from: Vec::new(), location: own.location, pace: None }
    }

    /// Returns the ledger of a place, from the programs' counts.
    pub(super) fn ledger_of(&self, served: &Served, place: usize) -> Ledger {
        // Read once, and before the counts of the frames that were filtered, blocked, sampled and captured.
        let Came { judged, reentry } = served.generations.came(place, ALL, self);
        let mut ledger = Ledger { offered: judged + reentry, ..Ledger::default() };
        if served.count_chosen {
            ledger.filtered = judged.saturating_sub(self.control.chosen(place));
        }
        ledger.blocked = self.control.blocked(place);
        ledger.sampled = self.control.sampled(place);
        let joined = served.places[place].missed_before;
        ledger.missed_before = served.missed_before.map(|missed| missed.saturating_sub(joined));
        let rings = &served.places[place].rings;
        count_written(&mut ledger, rings);
        let unreadable = |ring: &Ring<_>| ring.writer_word(WriterWord::DropsUnreadable);
        ledger.drops.insert("reentry", reentry);
        ledger.drops.insert("unreadable", rings.iter().map(unreadable).sum());
        ledger
    }

    /// Sets the losses before the hook, and updates the relay's copy of the hook's counts.
    pub(super) fn count(&self, missed_before: Option<u64>) {
        let mut served = self.served();
        served.missed_before = missed_before;
        self.count_for_relay(&served);
    }

    pub(super) fn count_for_relay(&self, served: &Served) {
        if let Some(relay) = &served.relay {
            // The relay's place is the last one.
            relay.count(&self.ledger_of(served, served.places.len() - 1));
        }
    }

    /// Starts the relay, which forwards the frames of its place.
    pub(super) fn start_relay(
        &self,
        relay: &mut Relay,
        base: &mut HookPlace,
    ) -> Result<(), CaptureError> {
        let waker = relay.start()?;
        self.add_waker(base, RELAY_WAKER, waker, 0)
    }

    /// Adds a waker for the rings of a place, and tells its consumer what this source announces to it.
    pub(super) fn add_waker(
        &self,
        place: &mut HookPlace,
        slot: WakerSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<(), CaptureError> {
        // For a source that captures by pattern, interfaces join on the thread that wakes readers. That can take longer
        // than a ring takes to fill, so such a source does not announce quarters.
        match self.members {
            Some(_) => waker.announce_confirmations(),
            None => waker.announce_quarters(),
        }
        place.wakers.add_polled(slot, waker, first_line, &self.channels)
    }

    /// Wakes all readers whose thresholds are reached, and those that wait for quarters.
    pub(super) fn wake(&self) {
        for place in &mut self.served().places {
            for cpu in 0..place.rings.len() {
                place.wake_readers(cpu);
            }
        }
    }

    /// Wakes all readers whose thresholds are reached, and arms the doorbell for the next thresholds. Returns false if
    /// another threshold has been reached meanwhile.
    pub(super) fn answer(&self, confirmer: &mut Confirmer) -> bool {
        let mut settled = true;
        let mut served = self.served();
        let is_confirmed = confirmer.take_end();
        for (number, place) in served.places.iter_mut().enumerate() {
            place.wakers.take_messages();
            for cpu in 0..place.rings.len() {
                let ordinal = place.wake_readers(cpu);
                let threshold = place.wakers.earliest(cpu, ordinal);
                if self.control.arm(number * self.cpus + cpu, threshold) {
                    confirmer.armed_otherwise();
                }
                // Frames may have come before the programs saw the new threshold. The check is not repeated here: with
                // thresholds that are always one frame ahead, the loop would not end while frames come.
                settled &= place.rings[cpu].frames_written() < threshold;
            }
        }
        served.places.iter_mut().for_each(|place| place.wakers.tell_armed());
        if is_confirmed {
            confirmer.confirm(served.places.iter_mut().map(|place| &mut place.wakers));
        }
        confirmer.begin(served.places.iter_mut().map(|place| &mut place.wakers));
        settled
    }

    /// Detaches the programs, closes all rings, and lets the relay forward the remaining frames. Further calls do
    /// nothing.
    pub(super) fn end(&self) -> Result<(), CaptureError> {
        let mut state = self.state();
        state.attachments.clear();
        if std::mem::replace(&mut state.is_over, true) {
            return Ok(());
        }
        let waited = rcu::synchronize();
        let mut served = self.served();
        if waited.is_ok() {
            served.generations.end_replaced(self);
        }
        // A free place has no rings.
        let places = served.places.iter().enumerate().filter(|(_, place)| !place.rings.is_empty());
        let rings = places.flat_map(|(at, _)| at * self.cpus..(at + 1) * self.cpus);
        let close = |ring| state.programs.close_ring(ring as u32).err();
        // All rings are closed, even if closing one of them fails: the reader of each ring waits for its end.
        let mut errors: Vec<CaptureError> = rings.filter_map(close).collect();
        errors.extend(waited.err());
        served.places.iter().for_each(|place| place.wakers.wake_all());
        if let Some(relay) = &mut served.relay {
            relay.control().end();
            errors.extend(relay.finish().err());
        }
        errors.into_iter().next().map_or(Ok(()), Err)
    }
}

impl Words for Shared {
    fn came(&self, generation: usize, interface: usize) -> Came {
        match &self.members {
            Some(members) if interface != ALL => members.counts.came(generation, interface),
            _ => self.control.came(generation),
        }
    }

    fn numbers(&self) -> usize {
        1 + self.members.as_ref().map_or(0, |members| members.interfaces.count())
    }
}

/// Longest time that a change of feeds waits for an interface that waits to join. The limit is needed because the
/// source may have ended, and no interface joins any more.
const GIVE_WAY: Duration = Duration::from_millis(100);

/// The slot of the relay's own waker. No consumer has this number.
const RELAY_WAKER: WakerSlot = WakerSlot::new(u32::MAX);

impl Served {
    pub(super) fn find(&self, slot: FeedSlot) -> Result<usize, CaptureError> {
        let at = self.feeds.iter().position(|own| own.slot == slot);
        at.ok_or(CaptureError::NoFeed)
    }

    /// Returns the writer of a feed's rings, and the relay's feeds if there is a relay.
    pub(super) fn of(&self, slot: FeedSlot) -> Result<(By, Option<Feeds>), CaptureError> {
        let by = self.feeds[self.find(slot)?].by;
        Ok((by, self.relay.as_ref().map(Relay::control)))
    }

    pub(super) fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("a feed of the relay's has one")
    }
}

/// Returns the taken places, one bit for each place.
pub(super) fn taken_places(places: &[Option<Feed>]) -> u32 {
    let taken = places.iter().enumerate().filter(|(_, feed)| feed.is_some());
    taken.fold(0, |members, (place, _)| members | 1 << place)
}
