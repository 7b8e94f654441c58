//! The feeds of a source whose frames pass through fan-outs: who joins, who leaves, and each one's ledger.
//!
//! Everything here runs on the thread that asks. The threads that move frames take over what is ready, between two
//! frames ([`super::update_queue`]). A ledger needs no instant at which several counters are read: a feed that joins
//! while frames come has the position at which it joined in each fan-out, which is exact, and the engine's counts of
//! frames that never came to a fan-out as they were then. Since `offered` is the sum of both, any reading of the latter
//! closes.

mod interfaces;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_filter::block::{BlockList, Entry as BlockEntry};
use weir_filter::{Program, UserFilterSet};
use weir_ring::wake::Waker;
use weir_ring::{Clock, Ledger, Mapping, Ring, WriterKind, memory};

use super::fanout::{Branch, BranchCounts, Branches, Fanout, Retired, Update};
use super::filters::Prefilter;
use super::update_queue::UpdateQueue;
use super::{FEEDS_MAX, Feed};
use crate::error::CaptureError;
use crate::feed::change::{Change, change_list};
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot, WakerSlot};
use crate::feed::counts::count_written;
use crate::feed::direction::Direction;
use crate::feed::interfaces::{InterfaceLedger, Interfaces, Tally};
use crate::feed::location::FilterLocation;
use crate::feed::pace::Pace;
use crate::kernel::rcu;
use crate::setup::Setup;

/// Judges a feed that is to join, and adapts it to the engine.
pub(crate) type Admit = dyn Fn(&mut Feed) -> Result<(), CaptureError> + Send + Sync;

/// The feeds of a source whose frames pass through fan-outs: their rings and counts. Clones are the same feeds.
#[derive(Clone)]
pub struct Feeds {
    shared: Arc<Shared>,
}

struct Shared {
    setup: Setup,
    clock: Clock,
    /// Which way the frames go that come here.
    offered: Direction,
    /// Whoever moves frames asks [`Fanout::is_open`].
    waits: bool,
    fanouts: Vec<Arc<UpdateQueue<Branches>>>,
    /// Frames that came to each.
    seen: Vec<Arc<AtomicU64>>,
    /// What the engine counted for all feeds.
    engine: Mutex<Ledger>,
    admit: Box<Admit>,
    /// Of a source with several.
    interfaces: Option<Interfaces>,
    /// Held throughout a change, which may take as long as loading a program: of two at a time one would be lost.
    state: Mutex<State>,
    /// Held for moments only, also by threads that move frames.
    entries: Mutex<Vec<Entry>>,
}

struct State {
    feeds_ever: u32,
    wakers_ever: u32,
    is_over: bool,
    prefilter: Option<Box<dyn Prefilter + Send>>,
}

/// One feed.
#[derive(Clone)]
struct Entry {
    slot: FeedSlot,
    feed: Feed,
    rings: Vec<Ring<Mapping>>,
    counts: Vec<Arc<BranchCounts>>,
    /// The engine's counts when it joined, of frames that came to no fan-out.
    before: Ledger,
    /// Those by interface, of a source with several; interfaces that joined later have none.
    unwanted_before: Vec<u64>,
    location: FilterLocation,
    blocked: Arc<BlockList>,
    /// The readers that its writer waits for, of a source that can wait.
    pace: Option<Pace>,
}

impl Feeds {
    /// Makes the rings of the first feeds, and as many fan-outs as threads will fill them. `admit` judges later ones.
    ///
    /// # Errors
    /// No memory for rings, or a size that no ring can have.
    pub(crate) fn create(
        setup: &Setup,
        fanouts: usize,
        clock: Clock,
        admit: Box<Admit>,
    ) -> Result<(Feeds, Vec<Fanout>), CaptureError> {
        let slots: Vec<FeedSlot> = FeedSlot::all().take(setup.feeds.len()).collect();
        Feeds::create_as(&slots, setup, fanouts, clock, admit)
    }

    /// The same for feeds with these slots.
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn create_as(
        slots: &[FeedSlot],
        setup: &Setup,
        fanouts: usize,
        clock: Clock,
        admit: Box<Admit>,
    ) -> Result<(Feeds, Vec<Fanout>), CaptureError> {
        Feeds::create_with(slots, setup, fanouts, clock, (admit, None), false)
    }

    fn create_with(
        slots: &[FeedSlot],
        setup: &Setup,
        fanouts: usize,
        clock: Clock,
        (admit, interfaces): (Box<Admit>, Option<Interfaces>),
        waits: bool,
    ) -> Result<(Feeds, Vec<Fanout>), CaptureError> {
        let seen: Vec<Arc<AtomicU64>> = (0..fanouts).map(|_| Arc::default()).collect();
        let queue = |seen: &Arc<AtomicU64>| {
            let by_interface = interfaces.as_ref().map(|_| Tally::new());
            let branches = Branches::new(Arc::clone(seen), by_interface);
            Arc::new(UpdateQueue::new(Box::new(branches)))
        };
        let shared = Shared {
            setup: setup.clone(),
            clock,
            offered: setup.direction(),
            waits,
            fanouts: seen.iter().map(queue).collect(),
            seen,
            engine: Mutex::default(),
            admit,
            interfaces,
            state: Mutex::new(State {
                feeds_ever: slots.len() as u32,
                wakers_ever: 0,
                is_over: false,
                prefilter: None,
            }),
            entries: Mutex::default(),
        };
        let feeds = Feeds { shared: Arc::new(shared) };
        for (number, feed) in setup.feeds.iter().enumerate() {
            feeds.join(slots[number], feed.clone(), None)?;
        }
        let ends = feeds.shared.fanouts.iter().map(|queue| Fanout::new(Arc::clone(queue)));
        let ends = ends.collect();
        Ok((feeds, ends))
    }

    /// [`create`](Feeds::create) for an engine with one thread.
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn create_one(
        setup: &Setup,
        clock: Clock,
        admit: Box<Admit>,
    ) -> Result<(Feeds, Fanout), CaptureError> {
        Feeds::create_one_that_waits(setup, clock, admit, false)
    }

    /// The same for one that, if `waits`, does not overtake the readers that have joined a feed's [`Pace`].
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn create_one_that_waits(
        setup: &Setup,
        clock: Clock,
        admit: Box<Admit>,
        waits: bool,
    ) -> Result<(Feeds, Fanout), CaptureError> {
        let slots: Vec<FeedSlot> = FeedSlot::all().take(setup.feeds.len()).collect();
        let (feeds, mut fanouts) =
            Feeds::create_with(&slots, setup, 1, clock, (admit, None), waits)?;
        Ok((feeds, fanouts.pop().expect("one was asked for")))
    }

    /// Has this leave out frames that no feed wants, before they come to a fan-out; it does so already for the first
    /// feeds, and `chosen` is what it said of them.
    pub(crate) fn set_prefilter(
        &self,
        prefilter: Box<dyn Prefilter + Send>,
        chosen: Option<FilterLocation>,
    ) {
        let mut state = self.lock();
        state.prefilter = Some(prefilter);
        if let Some(location) = chosen {
            self.shared.entries()[0].location = location;
        }
    }

    /// Where the feeds' frames are chosen, feed by feed.
    #[must_use]
    pub fn locations(&self) -> Vec<FilterLocation> {
        self.shared.entries().iter().map(|entry| entry.location).collect()
    }

    /// The feeds that there are.
    pub(crate) fn handles(&self) -> Vec<FeedHandle> {
        self.shared.entries().iter().map(Entry::handle).collect()
    }

    /// Frames that came to the fan-outs so far, as far as it is visible.
    pub(crate) fn seen(&self) -> u64 {
        self.shared.seen.iter().map(|seen| seen.load(Ordering::Acquire)).sum()
    }

    /// Takes over what the engine has counted so far for all feeds since its start: `offered`, and what of that never
    /// came to a fan-out. The feeds count the rest.
    pub fn count(&self, engine: Ledger) {
        *self.shared.engine.lock().unwrap_or_else(PoisonError::into_inner) = engine;
    }

    /// Refuses feeds that join from here on: the source stops.
    pub fn end(&self) {
        self.lock().is_over = true;
    }

    /// What changes these feeds from any thread.
    #[must_use]
    pub fn control(&self) -> Arc<dyn FeedControl> {
        Arc::new(self.clone())
    }

    /// Adds a feed under this slot.
    ///
    /// # Errors
    /// See [`FeedControl::add`].
    pub(crate) fn insert(
        &self,
        slot: FeedSlot,
        mut feed: Feed,
    ) -> Result<FeedHandle, CaptureError> {
        self.shared.check(&mut feed)?;
        let mut state = self.lock();
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        let mut wanted = self.shared.feeds();
        if wanted.len() >= FEEDS_MAX {
            return Err(CaptureError::Options(format!(
                "a source has {FEEDS_MAX} feeds at most in user space; remove one first"
            )));
        }
        // The kernel first: what it leaves out until then, the new feed may want.
        wanted.push(feed.clone());
        let chosen = state.choose(&wanted)?;
        let joined = self.join(slot, feed, None);
        if joined.is_err() {
            wanted.pop();
            let _ = state.choose(&wanted);
        }
        let at = joined?;
        let mut entries = self.shared.entries();
        if let Some(location) = chosen {
            entries[at].location = location;
        }
        Ok(entries[at].handle())
    }

    /// Makes the feed's rings and has it join in every fan-out. `replaces`: the
    /// feed that leaves in the same instant. Gives its place among the entries.
    fn join(
        &self,
        slot: FeedSlot,
        feed: Feed,
        replaces: Option<usize>,
    ) -> Result<usize, CaptureError> {
        let Shared { setup, clock, fanouts, offered, waits, .. } = &*self.shared;
        let pace = waits.then(Pace::new);
        let mut branch_feed = feed.clone();
        if feed.direction == *offered {
            // Nothing else comes.
            branch_feed.direction = Direction::Both;
        }
        let (mut rings, mut counts) = (Vec::new(), Vec::<Arc<BranchCounts>>::new());
        for _ in fanouts {
            let each = fanouts.len() as u64;
            let mut spec = setup.ring_spec_of(&feed, each, None, *clock, WriterKind::User)?;
            spec.interfaces.extend(self.shared.described(&feed));
            rings.push(memory::create_memfd("weir-ring", &spec)?);
            counts.push(Arc::new(self.shared.new_counts()));
        }
        let branches: Vec<Branch> = (rings.iter().zip(&counts))
            .map(|(ring, counts)| {
                let branch = Branch::new(slot, &branch_feed, ring, Arc::clone(counts));
                branch.that_waits_for(pace.as_ref())
            })
            .collect();
        let mut feeds = self.shared.feeds();
        match replaces {
            Some(at) => feeds[at] = feed.clone(),
            None => feeds.push(feed.clone()),
        }
        let sets = self.shared.filters(&feeds);
        let location = self.shared.location(&feeds, &sets[0]);
        let mut before = self.shared.engine();
        let unwanted_before = self.shared.unwanted_by_interface()?;
        if self.shared.interfaces.is_some() {
            before.filtered = unwanted_before.iter().sum();
        }
        before.offered = before.filtered + before.dropped();
        let blocked = Arc::default();
        let mut entry =
            Entry { slot, feed, rings, counts, before, unwanted_before, location, blocked, pace };
        let (at, leaves, blocked) = {
            let mut entries = self.shared.entries();
            self.shared.describe_interfaces(&entry)?;
            match replaces {
                Some(at) => {
                    entry.blocked = Arc::clone(&entries[at].blocked);
                    let blocked = Arc::clone(&entry.blocked);
                    let gone = std::mem::replace(&mut entries[at], entry);
                    (at, Some(gone.slot), blocked)
                }
                None => {
                    entries.push(entry);
                    (entries.len() - 1, None, Arc::default())
                }
            }
        };
        for ((queue, branch), filters) in fanouts.iter().zip(branches).zip(sets) {
            queue.post([
                Update::Exchange { leaves, joins: Some(Box::new(branch)) },
                Update::Filters(filters.filter(|_| has_filters(&feeds))),
                Update::Block(slot, Arc::clone(&blocked)),
            ]);
        }
        Ok(at)
    }

    /// Waits until a feed that was taken out has left every fan-out, closes its rings, and gives its final ledger.
    fn finish(&self, gone: &Entry) -> Ledger {
        for queue in &self.shared.fanouts {
            for retired in queue.settle() {
                if let Retired::Branch(mut branch) = retired {
                    branch.close();
                }
            }
        }
        self.shared.ledger(gone)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole whoever panicked while holding it: an entry is put in its place ready.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn engine(&self) -> Ledger {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn check(&self, feed: &mut Feed) -> Result<(), CaptureError> {
        self.setup.admit(feed)?;
        (self.admit)(feed)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        // Whole whoever panicked while holding it: an entry is put in its place ready.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, slot: FeedSlot) -> Result<usize, CaptureError> {
        let at = self.entries().iter().position(|entry| entry.slot == slot);
        at.ok_or(CaptureError::NoFeed)
    }

    fn feeds(&self) -> Vec<Feed> {
        self.entries().iter().map(|entry| entry.feed.clone()).collect()
    }

    /// The feeds' filters, once for each fan-out.
    fn filters(&self, feeds: &[Feed]) -> Vec<Option<UserFilterSet>> {
        let program = |feed: &'_ Feed| feed.filter.as_ref().map(|filter| filter.program.clone());
        let programs: Vec<Option<Program>> = feeds.iter().map(program).collect();
        let programs: Vec<Option<&Program>> = programs.iter().map(Option::as_ref).collect();
        self.fanouts.iter().map(|_| Some(UserFilterSet::new(&programs))).collect()
    }

    /// Where frames are chosen, of feeds with these filters.
    fn location(&self, feeds: &[Feed], filters: &Option<UserFilterSet>) -> FilterLocation {
        let chooses =
            self.setup.may_change || feeds.len() > 1 || feeds.iter().any(|feed| !feed.takes_all());
        match filters {
            Some(filters) if chooses && filters.is_compiled() => FilterLocation::Compiled,
            Some(_) if chooses => FilterLocation::Interpreted,
            _ => FilterLocation::Nowhere,
        }
    }

    fn ledger(&self, entry: &Entry) -> Ledger {
        let engine = self.engine();
        let mut ledger = engine.clone();
        ledger.filtered = engine.filtered.saturating_sub(entry.before.filtered);
        for (name, count) in &mut ledger.drops {
            let before = entry.before.drops.get(name).copied().unwrap_or(0);
            *count = count.saturating_sub(before);
        }
        if let (Some(now), Some(before)) = (ledger.missed_before, entry.before.missed_before) {
            ledger.missed_before = Some(now.saturating_sub(before));
        }
        let (mut before, mut came, mut has_left) = (0, 0, true);
        for (counts, seen) in entry.counts.iter().zip(&self.seen) {
            let now = seen.load(Ordering::Acquire);
            let joined = counts.joined_at().unwrap_or(now);
            has_left &= counts.left_at().is_some();
            before += joined;
            came += counts.left_at().unwrap_or(now).saturating_sub(joined);
        }
        ledger.offered = match has_left {
            true => came + ledger.filtered + ledger.dropped(),
            false => engine.offered.saturating_sub(before + entry.before.offered),
        };
        let sum = |count: fn(&BranchCounts) -> &AtomicU64| {
            let counts = entry.counts.iter().map(|own| count(own).load(Ordering::Acquire));
            counts.sum::<u64>()
        };
        ledger.filtered += sum(|own| &own.filtered);
        ledger.blocked += sum(|own| &own.blocked);
        ledger.sampled += sum(|own| &own.sampled);
        count_written(&mut ledger, &entry.rings);
        ledger
    }
}

fn has_filters(feeds: &[Feed]) -> bool {
    feeds.iter().any(|feed| feed.filter.is_some())
}

impl State {
    /// Has the prefilter leave out what none of these feeds wants, and returns once it does so.
    fn choose(&mut self, feeds: &[Feed]) -> Result<Option<FilterLocation>, CaptureError> {
        let Some(prefilter) = &mut self.prefilter else { return Ok(None) };
        if feeds.is_empty() || self.is_over {
            return Ok(None);
        }
        let chosen = prefilter.choose(feeds)?;
        // The program before may still run, until then.
        rcu::synchronize()?;
        Ok(chosen)
    }

    fn next_slot(&mut self) -> FeedSlot {
        let slot = FeedSlot::new(self.feeds_ever);
        self.feeds_ever += 1;
        slot
    }
}

impl Entry {
    fn handle(&self) -> FeedHandle {
        let Entry { slot, rings, location, pace, .. } = self;
        let (rings, pace) = (rings.clone(), pace.clone());
        FeedHandle { slot: *slot, rings, location: *location, notify: None, pace }
    }
}

impl FeedControl for Feeds {
    fn feeds(&self) -> Vec<FeedHandle> {
        self.handles()
    }

    fn add(&self, feed: Feed) -> Result<FeedHandle, CaptureError> {
        let slot = self.lock().next_slot();
        self.insert(slot, feed)
    }

    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let mut state = self.lock();
        let at = self.shared.find(feed)?;
        let mut wanted = self.shared.feeds();
        wanted.remove(at);
        let sets = self.shared.filters(&wanted);
        let gone = self.shared.entries().remove(at);
        for (queue, filters) in self.shared.fanouts.iter().zip(sets) {
            queue.post([
                Update::Exchange { leaves: Some(feed), joins: None },
                Update::Filters(filters.filter(|_| has_filters(&wanted))),
            ]);
        }
        let ledger = self.finish(&gone);
        // What this leaves as it was passes more than is wanted, and user space leaves that out.
        let _ = state.choose(&wanted);
        Ok(ledger)
    }

    fn replace_rings(&self, feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        let mut state = self.lock();
        let slot = state.next_slot();
        self.replace_as(&state, feed, slot)
    }

    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        let mut state = self.lock();
        let at = self.shared.find(feed)?;
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        self.shared.setup.check_changes()?;
        match change {
            Change::Filter(filter) => {
                let mut wanted = self.shared.feeds();
                wanted[at].filter = filter;
                self.shared.setup.admit(&mut wanted[at])?;
                // The kernel first: it may refuse.
                let chosen = state.choose(&wanted)?;
                let sets = self.shared.filters(&wanted);
                let location = chosen.unwrap_or(self.shared.location(&wanted, &sets[0]));
                for (queue, filters) in self.shared.fanouts.iter().zip(sets) {
                    queue.post([Update::Filters(filters.filter(|_| has_filters(&wanted)))]);
                }
                let mut entries = self.shared.entries();
                entries[at].feed = wanted.swap_remove(at);
                entries[at].location = location;
                Ok(location)
            }
            Change::Block { remove, add } => {
                self.block(at, &remove, &add)?;
                Ok(self.shared.entries()[at].location)
            }
        }
    }

    fn attach(
        &self,
        feed: FeedSlot,
        waker: Waker,
        first_line: usize,
    ) -> Result<WakerSlot, CaptureError> {
        let mut state = self.lock();
        let slot = WakerSlot::new(state.wakers_ever);
        self.attach_as(feed, slot, &waker, first_line)?;
        state.wakers_ever += 1;
        Ok(slot)
    }

    fn detach(&self, feed: FeedSlot, waker: WakerSlot) {
        let _state = self.lock();
        for queue in &self.shared.fanouts {
            queue.post([Update::Detach(feed, waker)]);
        }
        for queue in &self.shared.fanouts {
            close_retired(queue.settle());
        }
    }

    fn ledger(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        let entries = self.shared.entries();
        let entry = entries.iter().find(|entry| entry.slot == feed);
        Ok(self.shared.ledger(entry.ok_or(CaptureError::NoFeed)?))
    }

    fn interfaces(&self, feed: FeedSlot) -> Result<Vec<InterfaceLedger>, CaptureError> {
        self.shared.interface_ledgers(feed)
    }
}

impl Feeds {
    /// [`FeedControl::attach`] for a source that numbers its sleepers itself.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn attach_as(
        &self,
        feed: FeedSlot,
        slot: WakerSlot,
        waker: &Waker,
        first_line: usize,
    ) -> Result<(), CaptureError> {
        self.shared.find(feed)?;
        check_lines(waker, first_line, self.shared.fanouts.len())?;
        let clones: Result<Vec<Waker>, _> =
            self.shared.fanouts.iter().map(|_| waker.try_clone()).collect();
        for (number, (queue, waker)) in self.shared.fanouts.iter().zip(clones?).enumerate() {
            queue.post([Update::Attach(feed, slot, waker, first_line + number)]);
        }
        Ok(())
    }

    fn replace_as(
        &self,
        state: &State,
        feed: FeedSlot,
        slot: FeedSlot,
    ) -> Result<(FeedHandle, Ledger), CaptureError> {
        let at = self.shared.find(feed)?;
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        let gone = self.shared.entries()[at].clone();
        let at = self.join(slot, gone.feed.clone(), Some(at))?;
        let handle = {
            let mut entries = self.shared.entries();
            entries[at].location = gone.location;
            entries[at].handle()
        };
        Ok((handle, self.finish(&gone)))
    }

    /// [`FeedControl::replace_rings`] for a source that numbers its feeds itself.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn replace(
        &self,
        feed: FeedSlot,
        slot: FeedSlot,
    ) -> Result<(FeedHandle, Ledger), CaptureError> {
        let state = self.lock();
        self.replace_as(&state, feed, slot)
    }

    /// Changes a block list. The new one is made here, beside the old one: of 65,536 entries that takes milliseconds.
    fn block(
        &self,
        at: usize,
        remove: &[BlockEntry],
        add: &[BlockEntry],
    ) -> Result<(), CaptureError> {
        let (slot, old) = {
            let entry = &self.shared.entries()[at];
            (entry.slot, Arc::clone(&entry.blocked))
        };
        let mut list = BlockList::clone(&old);
        change_list(&mut list, remove, add)
            .map_err(|full| CaptureError::Options(full.to_string()))?;
        // A front is for those who block something.
        let new = Arc::new(if list.is_empty() { BlockList::default() } else { list });
        for queue in &self.shared.fanouts {
            queue.post([Update::Block(slot, Arc::clone(&new))]);
        }
        self.shared.entries()[at].blocked = new;
        Ok(())
    }
}

/// Frees what updates took out of service. A branch among it is one whose asking thread has gone on to wait for it: its
/// counts are final, and its rings are closed here as well as there.
fn close_retired(retired: Vec<Retired>) {
    for one in retired {
        if let Retired::Branch(mut branch) = one {
            branch.close();
        }
    }
}

/// That a waker has a line for each of a feed's rings.
///
/// # Errors
/// [`CaptureError::NarrowWaker`].
pub(crate) fn check_lines(
    waker: &Waker,
    first_line: usize,
    rings: usize,
) -> Result<(), CaptureError> {
    let lines = waker.lines();
    match first_line.checked_add(rings) {
        Some(end) if end <= lines => Ok(()),
        _ => Err(CaptureError::NarrowWaker { lines, first_line, rings }),
    }
}

/// A descriptor of its own for a new consumer.
pub(crate) fn own_notify(notify: &OwnedFd) -> Result<OwnedFd, CaptureError> {
    notify.try_clone().map_err(CaptureError::os("duplicating an eventfd"))
}
