//! Wakes sleepers in the guest when the host sends a bell.
//!
//! Applications in the guest sleep in the same way as applications next to a daemon: each has a wake page of thresholds
//! and a channel (`weir_ring::wake`). The host sees neither. It sees a word for each ring: the lowest of the
//! thresholds. It sends a *bell*, which is a byte on a serial port, once the ring reaches this word, and another one at
//! the ring's end. So the broker has the role of the *owner* in `weir_ring::doorbell`, and [`arming`](crate::arming)
//! shows why every sleeper is woken. The broker announces to sleepers that it confirms thresholds, so that they report
//! new thresholds, which it would not notice otherwise.
//!
//! One thread does all of this. It waits for the channels and for [`Bells::ring`], without a timeout, so it does not
//! run while nothing happens. Each turn receives the messages, arms all slots, and then confirms. A turn must serve all
//! slots, because one sleeper may wait for several slots, and may send its messages through any of their channels.

mod slot;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
#[cfg(test)]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use weir_region::limits::SLOTS_MAX;
use weir_ring::wake::Waker;
use weir_ring::{Mapping, Ring};

use crate::error::GuestError;
use crate::limits::TURN_TIME_MIN;
use crate::words::Words;
use slot::{Bell, Slot};

/// Most events that one turn handles; the next turn handles the others.
const EVENTS: usize = 64;
/// Event data of the eventfd. Bells are numbered from 1.
const NOTICE: u64 = 0;

/// Identifies a sleeper on a slot: the number that [`Bells::add`] gave it. A number is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BellId(u64);

/// All sleepers of a guest, and the thread that wakes them. Dropping this value ends the thread and closes the
/// sleepers' channels.
#[derive(Debug)]
pub struct Bells {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    words: Words,
    /// Polls the channels and `notice`.
    epoll: Arc<OwnedFd>,
    /// An eventfd: readable when the thread should take a turn.
    notice: OwnedFd,
    is_over: AtomicBool,
    state: Mutex<State>,
    /// Turns of the thread so far.
    #[cfg(test)]
    turns: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Slots that have bells.
    slots: BTreeMap<u32, Slot>,
    /// Number of bells that were ever added.
    added: u64,
}

impl Bells {
    /// Starts the thread. From now on only this value writes the words. No slot has sleepers yet.
    ///
    /// # Errors
    /// [`GuestError::Os`].
    pub fn start(words: Words) -> Result<Bells, GuestError> {
        words.clear_all();
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).map_err(GuestError::os("creating an epoll"))?;
        let notice = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(GuestError::os("creating an eventfd"))?;
        epoll::add(&epoll, &notice, EventData::new_u64(NOTICE), EventFlags::IN)
            .map_err(GuestError::os("polling an eventfd"))?;
        let epoll = Arc::new(epoll);
        let (is_over, state) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared {
            words,
            epoll,
            notice,
            is_over,
            state,
            #[cfg(test)]
            turns: AtomicU64::new(0),
        });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("weir-bells".into()).spawn(move || own.serve());
        let thread = thread.map_err(GuestError::os("starting the thread that wakes readers"))?;
        Ok(Bells { shared, thread: Some(thread) })
    }

    /// Adds a sleeper that is woken for a slot's ring. `first_line` is its line for the ring, as a daemon counts lines:
    /// a ring of the host is the only ring of its feed. All bells of a slot are for the same ring; the ring of the last
    /// call is used.
    ///
    /// # Errors
    /// [`GuestError::Slot`] and [`GuestError::Line`] for slots and lines that do not exist; [`GuestError::Os`].
    pub fn add(
        &self,
        slot: u32,
        ring: Ring<Mapping>,
        waker: Waker,
        first_line: usize,
    ) -> Result<BellId, GuestError> {
        if slot >= SLOTS_MAX {
            return Err(GuestError::Slot { slot });
        }
        let lines = waker.lines();
        if first_line >= lines {
            return Err(GuestError::Line { line: first_line, lines });
        }
        waker.announce_confirmations();
        let mut state = self.shared.state();
        state.added += 1;
        let id = BellId(state.added);
        let bell = Bell::new(id, waker, first_line, &self.shared.epoll)?;
        state.slots.entry(slot).or_insert_with(|| Slot::new(ring.clone())).add(ring, bell);
        drop(state);
        self.ring();
        Ok(id)
    }

    /// Removes a sleeper, and closes its channel. After this call, the ring of a slot without other sleepers is no
    /// longer accessed. Does nothing if the sleeper is gone already.
    pub fn remove(&self, id: BellId) {
        self.shared.retain(&mut self.shared.state(), |bell| bell.id != id);
        self.ring();
    }

    /// Removes all sleepers of a slot, because the host has removed its ring, or will remove it.
    pub fn forget_slot(&self, slot: u32) {
        let mut state = self.shared.state();
        if state.slots.remove(&slot).is_some() {
            self.shared.words.clear(slot);
        }
    }

    /// Makes the thread take a turn: a bell has come from the host, for whichever ring. May be called on any thread;
    /// never waits.
    pub fn ring(&self) {
        // If the eventfd is full, it is readable already.
        let _ = rustix::io::write(&self.shared.notice, &1u64.to_ne_bytes());
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.end();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the thread.
    fn serve(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // Nobody would wake the sleepers any more. Their closed channels tell them that.
                Err(_) => return self.end(),
            }
            let turn = Instant::now();
            // Read before the slots are looked at, so that a bell that comes meanwhile causes another turn.
            let _ = rustix::io::read(&self.notice, &mut [0; 8]);
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            self.take_turn(&events);
            thread::sleep(TURN_TIME_MIN.saturating_sub(turn.elapsed()));
        }
    }

    fn take_turn(&self, events: &[epoll::Event]) {
        #[cfg(test)]
        self.turns.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let is_ready = |bell: &Bell| events.iter().any(|event| event.data.u64() == bell.id.0);
        // Messages are received before thresholds are read: the thresholds of a request are in the page by then.
        self.retain(&mut state, |bell| !is_ready(bell) || bell.take_messages());
        for (number, slot) in &mut state.slots {
            slot.serve(*number, &self.words);
        }
        // Confirmed after all slots were served, because a sleeper may have bells of several slots.
        state.slots.values_mut().for_each(Slot::confirm);
    }

    /// Drops the bells for which `keep` returns false, and slots without bells.
    fn retain(&self, state: &mut State, mut keep: impl FnMut(&mut Bell) -> bool) {
        state.slots.retain(|number, slot| {
            let has_bells = slot.retain(&mut keep);
            if !has_bells {
                self.words.clear(*number);
            }
            has_bells
        });
    }

    /// Drops all bells.
    fn end(&self) {
        self.retain(&mut self.state(), |_| false);
    }
}

#[cfg(test)]
mod tests;
