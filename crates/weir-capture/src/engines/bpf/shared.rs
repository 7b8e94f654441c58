//! What the source's thread and those that change its feeds have in common.
//!
//! Two locks. `state` is held throughout a change, which may take as long as loading a program; the source's thread takes it
//! at its start and stop only. `served` is held for moments, by everybody.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_filter::block::Entry;
use weir_filter::insn::RET_K;
use weir_filter::{Insn, Program};
use weir_ring::geometry::WriterWord;
use weir_ring::wake::Waker;
use weir_ring::{Ledger, Mapping, Ring};

use super::attach::{self, Attachment};
use super::block::Blocks;
use super::confirm::Confirmer;
use super::control::Control;
use super::plan::Plan;
use super::program::{AtHook, Programs};
use super::relay::Relay;
use super::{BpfOptions, Hook, memory};
use crate::error::{CaptureError, error_text};
use crate::feed::change::{Change, change_list};
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
use crate::feed::counts::count_written;
use crate::feed::direction::Direction;
use crate::feed::feeds::{Feeds, check_lines, own_notify};
use crate::feed::location::FilterLocation;
use crate::feed::wakers::Wakers;
use crate::feed::{Feed, Filter};
use crate::kernel::interface::Interface;
use crate::kernel::rcu;
use crate::setup::{Setup, refuse_queue};

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
    pub(super) cpus: usize,
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
    feeds_ever: u32,
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
        let cpus = parts.cpus;
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
            feeds_ever: parts.setup.feeds.len() as u32,
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
        FeedHandle { slot: own.slot, rings, location: own.location, notify, pace: None }
    }

    /// What the programs counted in a place.
    fn ledger_of(&self, served: &Served, place: usize) -> Ledger {
        // Each is read once: a feed that has left has a ledger that closes, though others still get frames.
        let (judged, reentry) = (self.control.judged(), self.control.reentry());
        let mut ledger = Ledger { offered: judged + reentry, ..Ledger::default() };
        if served.count_chosen {
            ledger.filtered = judged.saturating_sub(self.control.chosen(place));
        }
        ledger.blocked = self.control.blocked(place);
        ledger.sampled = self.control.sampled(place);
        ledger.missed_before = served.missed_before;
        let rings = &served.places[place].rings;
        count_written(&mut ledger, rings);
        let unreadable = |ring: &Ring<_>| ring.writer_word(WriterWord::DropsUnreadable);
        ledger.drops.insert("reentry", reentry);
        ledger.drops.insert("unreadable", rings.iter().map(unreadable).sum());
        ledger
    }

    /// Brings what the relay knows of the hook's counts up to date.
    pub(super) fn count(&self, missed_before: Option<u64>) {
        let mut served = self.served();
        served.missed_before = missed_before;
        self.count_for_relay(&served);
    }

    fn count_for_relay(&self, served: &Served) {
        if let Some(relay) = &served.relay {
            // Its place is the last one.
            relay.count(&self.ledger_of(served, served.places.len() - 1));
        }
    }

    /// Has the relay, if there is one, begin to pass frames on.
    pub(super) fn start_relay(&self, served: &mut Served) -> Result<(), CaptureError> {
        let Some(relay) = &mut served.relay else { return Ok(()) };
        let waker = relay.start(own_notify(&self.notify_fd)?)?;
        waker.announce_confirmations();
        let base = served.places.last_mut().expect("what the relay reads has a place");
        base.wakers.add(RELAY_WAKER, waker, 0);
        Ok(())
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
    pub(super) fn answer(&self, confirmer: &mut Confirmer) -> bool {
        let mut settled = true;
        let mut served = self.served();
        let is_confirmed = confirmer.take_end();
        for (place, Place { rings, wakers }) in served.places.iter_mut().enumerate() {
            wakers.take_messages();
            for (cpu, ring) in rings.iter().enumerate() {
                let ordinal = ring.frames_written();
                wakers.published(cpu, ordinal);
                let threshold = wakers.earliest(cpu, ordinal);
                if self.control.arm(place * self.cpus + cpu, threshold) {
                    confirmer.armed_otherwise();
                }
                // Frames may have come before the programs saw the new threshold. No second try here:
                // thresholds that are always one frame ahead would keep it trying for as long as frames come.
                settled &= ring.frames_written() < threshold;
            }
        }
        if is_confirmed {
            confirmer.confirm(served.places.iter_mut().map(|place| &mut place.wakers));
        }
        confirmer.begin(served.places.iter_mut().map(|place| &mut place.wakers));
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
        // A feed that has left has no rings.
        let places = served.places.iter().enumerate().filter(|(_, place)| !place.rings.is_empty());
        let rings = places.flat_map(|(at, _)| at * self.cpus..(at + 1) * self.cpus);
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
            error_text(&error),
            error_text(&undoing)
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
        let refused = || {
            CaptureError::Options(format!(
                "the kernel does not take the filter '{text}' while the capture runs; the feed keeps the one that it \
                 has. A new capture can choose by it in user space"
            ))
        };
        self.choose(&mut state, place, filter, refused)?;
        Ok(FilterLocation::Hook)
    }

    /// Has the programs choose by this filter in a place, and returns once no other runs.
    fn choose(
        &self,
        state: &mut State,
        place: usize,
        filter: Option<Arc<Filter>>,
        refused: impl Fn() -> CaptureError,
    ) -> Result<(), CaptureError> {
        let mut feeds = state.at_hook.clone();
        feeds[place].filter = filter;
        let programs = state.programs.with_filters_of(&feeds).ok_or_else(refused)?;
        if state.has_begun && !state.is_over {
            self.exchange(state, &programs)?;
        }
        state.programs.at = programs;
        // What still runs by the old one is over when this returns.
        rcu::synchronize()?;
        state.at_hook = feeds;
        Ok(())
    }

    /// A relay, which needs memory at the hook, and frames in it.
    fn open_relay(&self, state: &mut State) -> Result<(), CaptureError> {
        let place = state.at_hook.len() - 1;
        if self.served().relay.is_none() {
            let setup = self.setup.of_feeds(state.at_hook.clone());
            let arrays = memory::create(&setup, place..place + 1)?;
            let rings = memory::attach(&arrays)?;
            state.programs.put_rings((place * self.cpus) as u32, &arrays)?;
            let relay = Relay::new(&setup.of_feeds(Vec::new()), &rings, &[])?;
            let mut served = self.served();
            served.places.push(Place { rings, wakers: Wakers::default() });
            served.relay = Some(relay);
            if state.has_begun {
                self.start_relay(&mut served)?;
            }
        }
        if state.programs.may_change() && state.at_hook[place].filter.is_some() {
            self.choose(state, place, None, refused_by_kernel)?;
        }
        Ok(())
    }

    /// Has the programs leave the relay's place alone, once no feed needs it.
    fn shut_relay(&self, state: &mut State) {
        let place = state.at_hook.len() - 1;
        let is_needed = self.served().feeds.iter().any(|own| matches!(own.by, By::Relay));
        if !is_needed && state.programs.may_change() {
            let filter = shut(&state.at_hook[place]).filter;
            // What stays as it is costs a copy, and nothing else.
            let _ = self.choose(state, place, filter, refused_by_kernel);
        }
    }

    /// Takes a feed out of its place at the hook.
    fn leave_hook(&self, feed: FeedSlot, place: usize) -> Result<Ledger, CaptureError> {
        let mut state = self.state();
        if !state.is_over {
            if !state.programs.may_change() {
                self.setup.check_changes()?;
                return Err(refused_by_kernel());
            }
            let filter = shut(&state.at_hook[place]).filter;
            self.choose(&mut state, place, filter, refused_by_kernel)?;
        }
        // Nobody writes there any more: its own counts stand still, and what it was offered is read once.
        let numbers = (place * self.cpus) as u32..((place + 1) * self.cpus) as u32;
        let closed: Vec<_> = numbers.clone().map(|ring| state.programs.close_ring(ring)).collect();
        let mut served = self.served();
        let ledger = self.ledger_of(&served, place);
        served.places[place].wakers.wake_all();
        served.places[place] = Place { rings: Vec::new(), wakers: Wakers::default() };
        let at = served.find(feed)?;
        served.feeds.remove(at);
        drop(served);
        let freed: Vec<_> = numbers.map(|ring| state.programs.forget_ring(ring)).collect();
        closed.into_iter().chain(freed).collect::<Result<(), _>>()?;
        Ok(ledger)
    }
}

/// A feed of its like that takes no frame.
pub(super) fn shut(feed: &Feed) -> Feed {
    let program = Program::new(vec![Insn::new(RET_K, 0)]).expect("one instruction, which returns");
    let link_type = feed.interface.link_type;
    let filter = Filter { text: String::new(), link_type, program };
    Feed { filter: Some(Arc::new(filter)), ..feed.clone() }
}

fn refused_by_kernel() -> CaptureError {
    CaptureError::Options(
        "the kernel does not take the capture program while the capture runs; nothing has changed"
            .into(),
    )
}

/// The relay, among the sleepers on its own rings: no consumer has this number.
const RELAY_WAKER: WakerSlot = WakerSlot::new(u32::MAX);

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
            let error = error_text(&error);
            return Err(CaptureError::Options(match blocks.set(at, &before) {
                Ok(()) => format!("{error}; the list is as it was"),
                Err(undoing) => format!(
                    "{error}; and so was the way back ({}): more may be blocked than the list says, until the \
                     capture is started again",
                    error_text(&undoing)
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

    /// Who writes a feed's rings, and the relay's feeds.
    fn of(&self, slot: FeedSlot) -> Result<(By, Option<Feeds>), CaptureError> {
        let by = self.feeds[self.find(slot)?].by;
        Ok((by, self.relay.as_ref().map(Relay::control)))
    }

    fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("a feed of the relay's has one")
    }
}

/// What changes the source from any thread.
pub(super) struct BpfControl(pub(super) Arc<Shared>);

impl FeedControl for BpfControl {
    fn feeds(&self) -> Vec<FeedHandle> {
        self.0.handles()
    }

    fn add(&self, mut feed: Feed) -> Result<FeedHandle, CaptureError> {
        let shared = &*self.0;
        shared.setup.admit(&mut feed)?;
        refuse_queue(&feed, "the relay, which serves feeds that join later,")?;
        if shared.options.hook == Hook::Xdp {
            if feed.direction == Direction::Out {
                return Err(CaptureError::Options("XDP sees received frames only".into()));
            }
            feed.direction = Direction::Both;
        } else {
            Setup::admit_direction(shared.setup.direction(), &feed)?;
        }
        let mut state = shared.state();
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        shared.open_relay(&mut state)?;
        let slot = FeedSlot::new(state.feeds_ever);
        state.feeds_ever += 1;
        let relay = {
            let served = shared.served();
            // The feed counts from here on.
            shared.count_for_relay(&served);
            served.relay().control()
        };
        let joined = relay.insert(slot, feed);
        if let Ok(handle) = &joined {
            let own = Own { slot, location: handle.location, by: By::Relay };
            shared.served().feeds.push(own);
        }
        shared.shut_relay(&mut state);
        Ok(FeedHandle { notify: None, ..joined? })
    }

    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let shared = &*self.0;
        let (by, relay) = shared.served().of(feed)?;
        match (by, relay) {
            (By::Hook(place), _) => shared.leave_hook(feed, place),
            (By::Relay, Some(relay)) => {
                let mut state = shared.state();
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
        let mut state = shared.state();
        let (By::Relay, Some(relay)) = shared.served().of(feed)? else {
            return Err(CaptureError::Options(
                "this feed is at the hook, which cannot give it other rings while it runs; add one like it, then \
                 remove it"
                    .into(),
            ));
        };
        let slot = FeedSlot::new(state.feeds_ever);
        state.feeds_ever += 1;
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
            (By::Hook(place), _) => self.0.change_at_hook(place, change)?,
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
                waker.announce_confirmations();
                served.places[place].wakers.add(slot, waker, first_line);
            }
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
