//! Adds, removes and changes feeds at the hook. Each change loads new programs, which replace the running ones; each
//! frame is handled by either an old or a new program (docs/decisions/0017-feeds-at-run-time.md).

use weir_ring::{Ledger, Mapping, Ring};

use super::program::AtHook;
use super::relay::{self, Relay};
use super::shared::{By, HookPlace, Own, Shared, State, taken_places};
use super::{attach, memory, plan};
use crate::error::{CaptureError, error_text};
use crate::feed::Feed;
use crate::feed::change::Change;
use crate::feed::control::{FeedHandle, FeedSlot};
use crate::feed::location::FilterLocation;
use crate::in_parallel::both;
use crate::kernel::rcu;

impl Shared {
    /// Makes the programs write the rings of these feeds, which are ordered by place. Returns false if the kernel does
    /// not accept the new programs; nothing has changed then.
    fn install(&self, state: &mut State, places: Vec<Option<Feed>>) -> Result<bool, CaptureError> {
        let words = self.free_words(state)?;
        let Some(programs) = state.programs.with_feeds(&places, &state.lists, words)? else {
            return Ok(false);
        };
        self.put(state, places, words, programs)?;
        Ok(true)
    }

    /// Replaces the running programs, on all sides or on none. The new programs count their frames in `words`.
    fn put(
        &self,
        state: &mut State,
        places: Vec<Option<Feed>>,
        words: usize,
        programs: AtHook,
    ) -> Result<(), CaptureError> {
        // This comes before the new programs handle a frame.
        self.served().generations.begin(words, taken_places(&places), self);
        if state.has_begun && !state.is_over {
            self.exchange(state, words, &programs)?;
        }
        self.served().generations.replaced_by(words);
        (state.programs.at, state.places) = (programs, places);
        Ok(())
    }

    fn exchange(
        &self,
        state: &mut State,
        words: usize,
        programs: &AtHook,
    ) -> Result<(), CaptureError> {
        let State { attachments, .. } = state;
        let Err(error) = attach::exchange(programs, attachments) else {
            return Ok(());
        };
        // If there are two sides, the first may have the new program already.
        let back = attach::exchange(&state.programs.at, attachments);
        let Err(undoing) = back else { return Err(error) };
        self.served().generations.stuck(words);
        Err(CaptureError::Options(format!(
            "{}; and so was the way back ({}): frames of one direction may be chosen by the new filter, until the \
             filter is changed again",
            error_text(&error),
            error_text(&undoing)
        )))
    }

    /// Returns words in which no running program counts.
    fn free_words(&self, state: &mut State) -> Result<usize, CaptureError> {
        if let Some(words) = self.served().generations.free_words() {
            return Ok(words);
        }
        self.settle(state)?;
        self.served().generations.free_words().ok_or_else(refused_by_kernel)
    }

    /// Waits until no replaced program runs any more.
    fn settle(&self, _state: &mut State) -> Result<(), CaptureError> {
        rcu::synchronize()?;
        self.served().generations.end_replaced(self);
        Ok(())
    }

    /// Changes the filter or the block list of a feed at the hook.
    pub(super) fn change_at_hook(
        &self,
        feed: FeedSlot,
        place: usize,
        change: Change,
    ) -> Result<FilterLocation, CaptureError> {
        let mut state = self.state_for_change();
        // Find the feed again under the lock: the place may belong to another feed by now.
        self.served().find(feed)?;
        let filter = match change {
            Change::Filter(filter) => filter,
            Change::Block { remove, add } => {
                state.block(place, &remove, &add)?;
                return Ok(FilterLocation::Hook);
            }
        };
        let text = filter.as_ref().map_or_else(String::new, |filter| filter.text.clone());
        let mut places = state.places.clone();
        places[place].as_mut().ok_or(CaptureError::NoFeed)?.filter = filter;
        if !self.install(&mut state, places)? {
            return Err(CaptureError::Options(format!(
                "the kernel does not take the filter '{text}' while the capture runs; the feed keeps the one that it \
                 has. A new capture can choose by it in user space"
            )));
        }
        self.settle(&mut state)?;
        Ok(FilterLocation::Hook)
    }

    /// Takes a place at the hook for a new feed. `None` if no place is free, or the kernel does not accept
    /// the feed's filter.
    pub(super) fn join_at_hook(
        &self,
        state: &mut State,
        feed: &Feed,
    ) -> Result<Option<usize>, CaptureError> {
        if feed.is_sealed || !state.programs.may_change() {
            return Ok(None);
        }
        self.free_left_places(state)?;
        // One place stays free, for a feed that moves to other rings.
        if self.free_places(state).count() < 2 {
            return Ok(None);
        }
        self.take_place(state, feed, None)
    }

    /// Returns the places that no feed has and whose rings no program writes. A place without a feed that still has
    /// rings is not free: waiting for the end of its programs failed.
    fn free_places(&self, state: &State) -> impl Iterator<Item = usize> + use<> {
        let served = self.served();
        let is_free = |(place, feed): (usize, &Option<Feed>)| {
            (feed.is_none() && served.places[place].rings.is_empty()).then_some(place)
        };
        let free: Vec<usize> = state.feed_places().iter().enumerate().filter_map(is_free).collect();
        free.into_iter()
    }

    /// Frees the places whose feeds have left, but for whose programs waiting failed.
    fn free_left_places(&self, state: &mut State) -> Result<(), CaptureError> {
        let left: Vec<usize> = {
            let served = self.served();
            let is_left = |place: &usize| {
                let is_own = |own: &Own| matches!(own.by, By::Hook(at) if at == *place);
                state.places[*place].is_none()
                    && !served.places[*place].rings.is_empty()
                    && !served.feeds.iter().any(is_own)
            };
            (0..state.feed_places().len()).filter(is_left).collect()
        };
        if left.is_empty() {
            return Ok(());
        }
        self.settle(state)?;
        left.into_iter().try_for_each(|place| self.free_place(state, place, None).1)
    }

    /// Adds a feed in a free place. At the same instant, the feed in the place `leaves` leaves.
    fn take_place(
        &self,
        state: &mut State,
        feed: &Feed,
        leaves: Option<usize>,
    ) -> Result<Option<usize>, CaptureError> {
        let Some(place) = self.free_places(state).next() else { return Ok(None) };
        let mut places = state.places.clone();
        places[place] = Some(feed.clone());
        let mut lists = state.lists.clone();
        if let Some(leaves) = leaves {
            places[leaves] = None;
            lists.swap(leaves, place);
        }
        let words = self.free_words(state)?;
        // Creating rings waits for RCU, while the verifier takes CPU time.
        let load = || state.programs.with_feeds(&places, &lists, words);
        let (programs, rings) = both(load, || self.make_rings(state, place, feed));
        let rings = rings?;
        let programs = match programs {
            Ok(Some(programs)) => programs,
            refused => {
                self.forget_rings(state, place)?;
                return refused.map(|_| None);
            }
        };
        self.begin_place(place, rings, feed);
        if let Err(error) = self.put(state, places, words, programs) {
            self.settle(state)?;
            let _ = self.free_place(state, place, None);
            return Err(error);
        }
        state.lists = lists;
        Ok(Some(place))
    }

    /// Creates the rings of a place, and gives them to the programs.
    fn make_rings(
        &self,
        state: &State,
        place: usize,
        feed: &Feed,
    ) -> Result<Vec<Ring<Mapping>>, CaptureError> {
        let arrays = memory::create(&self.setup.of_feeds(vec![feed.clone()]), 0..1)?;
        let rings = memory::attach(&arrays)?;
        state.programs.put_rings((place * self.cpus) as u32, &arrays)?;
        if let Some(members) = &self.members
            && let Err(error) =
                members.describe_all(&state.programs, place * self.cpus, &rings, feed)
        {
            // Otherwise the rings would be freed only when the next feed takes the place.
            self.forget_rings(state, place)?;
            return Err(error);
        }
        Ok(rings)
    }

    fn forget_rings(&self, state: &State, place: usize) -> Result<(), CaptureError> {
        let (first, end) = (place * self.cpus, (place + 1) * self.cpus);
        state.programs.forget_rings(first as u32..end as u32)
    }

    /// Sets up a place for a new feed: its rings, and counts of 0.
    fn begin_place(&self, place: usize, rings: Vec<Ring<Mapping>>, feed: &Feed) {
        self.control.clear(place);
        if let Some(members) = &self.members {
            members.counts.clear(place, members.interfaces.count());
        }
        let mut served = self.served();
        served.generations.clear(place);
        let missed_before = served.missed_before.unwrap_or(0);
        let missed_by_interface =
            self.members.as_ref().map(|members| members.missed().clone()).unwrap_or_default();
        let interface = feed.interface.clone();
        let new = HookPlace { rings, interface, ..HookPlace::default() };
        served.places[place] = HookPlace { missed_before, missed_by_interface, ..new };
    }

    /// Closes and frees the rings of a place whose programs no longer run. Returns the place's ledger, and whether all
    /// rings could be closed and freed. `feed`: the feed that leaves the source; `None` if none does.
    fn free_place(
        &self,
        state: &mut State,
        place: usize,
        feed: Option<FeedSlot>,
    ) -> (Ledger, Result<(), CaptureError>) {
        let numbers = place * self.cpus..(place + 1) * self.cpus;
        let closed: Vec<_> = numbers.map(|ring| state.programs.close_ring(ring as u32)).collect();
        let ledger = {
            let mut served = self.served();
            let ledger = self.ledger_of(&served, place);
            served.places[place].wakers.wake_all();
            served.places[place] = HookPlace::default();
            served.feeds.retain(|own| Some(own.slot) != feed);
            ledger
        };
        state.places[place] = None;
        let unblocked = state.empty_blocks(place);
        let freed = self.forget_rings(state, place);
        (ledger, closed.into_iter().chain([unblocked, freed]).collect())
    }

    /// Removes a feed from its place at the hook.
    pub(super) fn leave_hook(&self, feed: FeedSlot, place: usize) -> Result<Ledger, CaptureError> {
        let mut state = self.state_for_change();
        self.served().find(feed)?;
        if !state.is_over {
            if !state.programs.may_change() {
                self.setup.check_changes()?;
                return Err(refused_by_kernel());
            }
            let mut places = state.places.clone();
            places[place] = None;
            if !self.install(&mut state, places)? {
                return Err(refused_by_kernel());
            }
            self.settle(&mut state)?;
        }
        let (ledger, freed) = self.free_place(&mut state, place, Some(feed));
        freed.map(|()| ledger)
    }

    /// Moves a feed at the hook to another place, with other rings.
    pub(super) fn replace_at_hook(
        &self,
        state: &mut State,
        feed: FeedSlot,
        place: usize,
    ) -> Result<(FeedHandle, Ledger), CaptureError> {
        self.setup.check_changes()?;
        if state.is_over {
            return Err(CaptureError::Ended);
        }
        let own = state.places[place].clone().ok_or(CaptureError::NoFeed)?;
        self.free_left_places(state)?;
        let to = self.take_place(state, &own, Some(place))?.ok_or_else(refused_by_kernel)?;
        // From here on the feed is in the other place. Each frame is in exactly one of the two places, so undoing the
        // move would lose frames.
        let slot = state.next_feed();
        let handle = {
            let mut served = self.served();
            let at = served.find(feed)?;
            (served.feeds[at].slot, served.feeds[at].by) = (slot, By::Hook(to));
            self.handle(&served, &served.feeds[at])
        };
        let ledger = match self.settle(state) {
            // If the rings cannot be freed, they still occupy memory, but no frames are lost.
            Ok(()) => self.free_place(state, place, None).0,
            // Programs on other CPUs may still write a last frame into the old rings. The next change frees the place.
            Err(_) => self.ledger_of(&self.served(), place),
        };
        Ok((handle, ledger))
    }

    /// Starts the relay if it does not run, and makes the programs write its rings.
    pub(super) fn open_relay(&self, state: &mut State) -> Result<(), CaptureError> {
        if self.members.is_some() {
            return Err(plan::no_relay());
        }
        let place = state.places.len() - 1;
        let base = relay::base(&self.setup);
        if self.served().relay.is_none() {
            let rings = self.make_rings(state, place, &base)?;
            if let Err(error) = self.begin_relay(state, place, rings, &base) {
                self.served().places[place] = HookPlace::default();
                self.forget_rings(state, place)?;
                return Err(error);
            }
        }
        if state.places[place].is_none() {
            let mut places = state.places.clone();
            places[place] = Some(base);
            if !self.install(state, places)? {
                return Err(refused_by_kernel());
            }
            self.settle(state)?;
        }
        Ok(())
    }

    /// Starts the relay's thread, if the source has begun, and then publishes the relay. If it were published before,
    /// feeds could join it and get no frames.
    fn begin_relay(
        &self,
        state: &State,
        place: usize,
        rings: Vec<Ring<Mapping>>,
        base: &Feed,
    ) -> Result<(), CaptureError> {
        let mut relay = Relay::new(&self.setup.of_feeds(Vec::new()), &rings, &[])?;
        self.begin_place(place, rings, base);
        let mut served = self.served();
        if state.has_begun {
            self.start_relay(&mut relay, &mut served.places[place])?;
        }
        served.relay = Some(relay);
        Ok(())
    }

    /// Makes the programs stop writing the relay's rings, if no feed needs the relay.
    pub(super) fn shut_relay(&self, state: &mut State) {
        let is_needed = self.served().feeds.iter().any(|own| matches!(own.by, By::Relay));
        if !is_needed && state.programs.may_change() {
            let mut places = state.places.clone();
            places.pop();
            places.push(None);
            // If this fails, frames are still copied to the relay's rings; that only costs time.
            let _ = self.install(state, places);
        }
    }
}

fn refused_by_kernel() -> CaptureError {
    CaptureError::Options(
        "the kernel does not take the capture program while the capture runs; nothing has changed"
            .into(),
    )
}

impl State {
    /// Returns the places for feeds: all except the relay's.
    fn feed_places(&self) -> &[Option<Feed>] {
        &self.places[..self.places.len() - 1]
    }

    pub(super) fn next_feed(&mut self) -> FeedSlot {
        let slot = FeedSlot::new(self.feeds_ever);
        self.feeds_ever += 1;
        slot
    }
}
