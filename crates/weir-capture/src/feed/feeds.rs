//! The feeds of a source whose frames pass through fan-outs. Feeds join and leave, and each has a ledger.
//!
//! Everything here runs on the requesting thread. The threads that move frames take over the prepared
//! changes between two frames ([`super::update_queue`]). The counters of a ledger need not be read at the
//! same moment. A feed that joins records, at that time, its exact position in each fan-out and the
//! engine's count of frames that never came to a fan-out. `offered` is the sum of what was added to both
//! since then, so the ledger balances whenever the engine's count is read.

mod control;
mod interfaces;
mod join;
mod ledger;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_filter::block::BlockList;
use weir_ring::wake::Waker;
use weir_ring::{Clock, Ledger, Mapping, Ring};

use super::fanout::{BranchCounts, Branches, Fanout};
use super::filters::Prefilter;
use super::update_queue::UpdateQueue;
use super::{FEEDS_MAX, Feed};
use crate::error::CaptureError;
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot};
use crate::feed::direction::Direction;
use crate::feed::interfaces::{EngineCount, Tally};
use crate::feed::location::FilterLocation;
use crate::feed::pace::Pace;
use crate::kernel::rcu;
use crate::setup::Setup;
use interfaces::Several;

/// Checks a feed that is to be added, and adapts it to the engine.
pub(crate) type Admit = dyn Fn(&mut Feed) -> Result<(), CaptureError> + Send + Sync;

/// The feeds of a source whose frames pass through fan-outs: their rings and counts. Clones are the same feeds.
#[derive(Clone)]
pub struct Feeds {
    shared: Arc<Shared>,
}

/// Properties of the threads that write an engine's rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RingUse {
    /// Whether the writing threads check [`Fanout::is_open`], and so wait for readers that have joined a
    /// feed's [`Pace`].
    pub(crate) waits: bool,
}

struct Shared {
    setup: Setup,
    clock: Clock,
    /// The direction of the frames that come to the fan-outs.
    offered: Direction,
    ring_use: RingUse,
    fanouts: Vec<Arc<UpdateQueue<Branches>>>,
    /// Number of frames that came to each fan-out.
    seen: Vec<Arc<AtomicU64>>,
    /// `seen` by interface, if the source has several.
    seen_by_interface: Vec<Arc<Tally>>,
    /// Counts of the engine for all feeds.
    engine: Mutex<Ledger>,
    /// Whether the source stops.
    has_ended: AtomicBool,
    admit: Box<Admit>,
    /// The interfaces, if the source has several.
    interfaces: Option<Several>,
    /// Held during a whole change, which may include loading a program. Otherwise one of two concurrent changes would
    /// be lost.
    state: Mutex<State>,
    /// Held only briefly, also by threads that move frames.
    entries: Mutex<Vec<Entry>>,
}

struct State {
    feeds_ever: u32,
    wakers_ever: u32,
    is_over: bool,
    prefilter: Option<Box<dyn Prefilter + Send>>,
}

/// A present feed.
#[derive(Clone)]
struct Entry {
    slot: FeedSlot,
    feed: Feed,
    rings: Vec<Ring<Mapping>>,
    counts: Vec<Arc<BranchCounts>>,
    /// The engine's counts of frames that came to no fan-out, at the time when the feed joined.
    before: Ledger,
    /// `before` by interface, if the source has several. Interfaces that joined later have no entry.
    interfaces_before: Vec<EngineCount>,
    location: FilterLocation,
    blocked: Arc<BlockList>,
    /// The pace of the readers for which the feed's writer waits, if the source can wait.
    pace: Option<Pace>,
}

impl Feeds {
    /// Makes the rings of the first feeds, and a fan-out for each thread that will fill them. `admit` checks later
    /// feeds.
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

    /// As [`create`](Feeds::create), for feeds with these slots.
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
        Feeds::create_with(slots, setup, fanouts, clock, (admit, None), RingUse::default())
    }

    fn create_with(
        slots: &[FeedSlot],
        setup: &Setup,
        fanouts: usize,
        clock: Clock,
        (admit, interfaces): (Box<Admit>, Option<Several>),
        ring_use: RingUse,
    ) -> Result<(Feeds, Vec<Fanout>), CaptureError> {
        let seen: Vec<Arc<AtomicU64>> = (0..fanouts).map(|_| Arc::default()).collect();
        let tallies = if interfaces.is_some() { fanouts } else { 0 };
        let seen_by_interface: Vec<Arc<Tally>> =
            (0..tallies).map(|_| Arc::new(Tally::new())).collect();
        let queue = |(number, seen): (usize, &Arc<AtomicU64>)| {
            let by_interface = seen_by_interface.get(number).cloned();
            let branches = Branches::new(Arc::clone(seen), by_interface);
            Arc::new(UpdateQueue::new(Box::new(branches)))
        };
        let shared = Shared {
            setup: setup.clone(),
            clock,
            offered: setup.direction(),
            ring_use,
            fanouts: seen.iter().enumerate().map(queue).collect(),
            seen,
            seen_by_interface,
            engine: Mutex::default(),
            has_ended: AtomicBool::new(false),
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

    /// Does the same as [`create`](Feeds::create) for an engine with one thread.
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn create_one(
        setup: &Setup,
        clock: Clock,
        admit: Box<Admit>,
    ) -> Result<(Feeds, Fanout), CaptureError> {
        Feeds::create_one_with(setup, clock, admit, RingUse::default())
    }

    /// As [`create_one`](Feeds::create_one), for an engine with this use of its rings.
    ///
    /// # Errors
    /// As `create`.
    pub(crate) fn create_one_with(
        setup: &Setup,
        clock: Clock,
        admit: Box<Admit>,
        ring_use: RingUse,
    ) -> Result<(Feeds, Fanout), CaptureError> {
        let slots: Vec<FeedSlot> = FeedSlot::all().take(setup.feeds.len()).collect();
        let (feeds, mut fanouts) =
            Feeds::create_with(&slots, setup, 1, clock, (admit, None), ring_use)?;
        Ok((feeds, fanouts.pop().expect("one was asked for")))
    }

    /// Sets the prefilter, which rejects frames that no feed wants before they come to a fan-out. It has
    /// already been set up for the first feeds; `chosen` is the result.
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

    /// Returns the place where each feed's filter runs.
    #[must_use]
    pub fn locations(&self) -> Vec<FilterLocation> {
        self.shared.entries().iter().map(|entry| entry.location).collect()
    }

    /// Handles of the present feeds.
    pub(crate) fn handles(&self) -> Vec<FeedHandle> {
        self.shared.entries().iter().map(Entry::handle).collect()
    }

    /// Returns the number of frames that came to the fan-outs and are published.
    pub(crate) fn seen(&self) -> u64 {
        self.shared.seen.iter().map(|seen| seen.load(Ordering::Acquire)).sum()
    }

    /// Sets the counts of the engine for all feeds since its start: `offered`, and the part of it that never came to a
    /// fan-out. The feeds count the rest.
    pub fn count(&self, engine: Ledger) {
        *self.shared.engine.lock().unwrap_or_else(PoisonError::into_inner) = engine;
    }

    /// Refuses new feeds from now on, because the source stops.
    pub fn end(&self) {
        self.lock().is_over = true;
        self.shared.has_ended.store(true, Ordering::Release);
    }

    /// Returns the interface for changing these feeds from any thread.
    #[must_use]
    pub fn control(&self) -> Arc<dyn FeedControl> {
        Arc::new(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The data is valid even if a thread panicked while holding it: an entry is complete when
        // it is inserted.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn check(&self, feed: &mut Feed) -> Result<(), CaptureError> {
        self.setup.admit(feed)?;
        (self.admit)(feed)
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        // The data is valid even if a thread panicked while holding it: an entry is complete when
        // it is inserted.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, slot: FeedSlot) -> Result<usize, CaptureError> {
        let at = self.entries().iter().position(|entry| entry.slot == slot);
        at.ok_or(CaptureError::NoFeed)
    }

    fn feeds(&self) -> Vec<Feed> {
        self.entries().iter().map(|entry| entry.feed.clone()).collect()
    }
}

impl State {
    /// Makes the prefilter reject frames that none of these feeds wants, and waits until it does.
    fn choose(&mut self, feeds: &[Feed]) -> Result<Option<FilterLocation>, CaptureError> {
        let Some(prefilter) = &mut self.prefilter else { return Ok(None) };
        if feeds.is_empty() || self.is_over {
            return Ok(None);
        }
        let chosen = prefilter.choose(feeds)?;
        // Until this returns, the former program may still run.
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
        FeedHandle { slot: *slot, rings, from: Vec::new(), location: *location, pace }
    }
}

/// Checks that a waker has a line for each of a feed's rings.
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
