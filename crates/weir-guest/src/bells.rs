//! Sleepers in the guest: the host rings, and this wakes.
//!
//! Applications in the guest sleep as they do beside a daemon: each has a wake page of thresholds and a channel
//! (`weir_ring::wake`). The host sees neither. It has a word for each ring, the lowest of the thresholds, and sends a
//! *bell*, a byte on a serial port, once the ring reaches it, and one at the ring's end. So the broker is the *owner*
//! of `weir_ring::doorbell`, and [`arming`](crate::arming) argues why none of its sleepers is missed. They are told
//! that it confirms: then they say when their thresholds are new, which it would not notice otherwise.
//!
//! One thread does all of it. It waits for the channels and for [`Bells::ring`], without a limit: while nothing
//! happens, nothing runs. Each turn takes the messages, arms all slots, and then confirms. A turn must serve all slots:
//! one sleeper may have bells of several, and send its messages through any of them.

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

/// Events that are taken in a turn; the others are there in the next one.
const EVENTS: usize = 64;
/// Identifies the eventfd; bells are numbered from 1.
const NOTICE: u64 = 0;

/// One sleeper on one slot, as [`Bells::add`] has numbered it. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BellId(u64);

/// All sleepers of a guest, and the thread that wakes them. Dropping it ends the thread and hangs up their channels.
#[derive(Debug)]
pub struct Bells {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    words: Words,
    /// Of the channels and `notice`.
    epoll: Arc<OwnedFd>,
    /// An eventfd: there is something to look at.
    notice: OwnedFd,
    is_over: AtomicBool,
    state: Mutex<State>,
    /// Turns of the thread so far.
    #[cfg(test)]
    turns: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Only slots with bells.
    slots: BTreeMap<u32, Slot>,
    /// Bells that were ever added.
    added: u64,
}

impl Bells {
    /// Starts the thread. The words are this one's alone from now on; nobody sleeps on any slot.
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

    /// Wakes a sleeper on a slot's ring from now on. Its line for the ring is `first_line`, as a daemon counts: a ring
    /// of the host's is the only one of its feed. All bells of a slot are of the same ring; the last one counts.
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

    /// Wakes a sleeper no more, and hangs its channel up. Once this has returned, the ring of a slot that has no other
    /// sleeper is not touched any more. One that is gone makes no difference.
    pub fn remove(&self, id: BellId) {
        self.shared.retain(&mut self.shared.state(), |bell| bell.id != id);
        self.ring();
    }

    /// The same for all sleepers of a slot: the host has taken its ring away, or is to.
    pub fn forget_slot(&self, slot: u32) {
        let mut state = self.shared.state();
        if state.slots.remove(&slot).is_some() {
            self.shared.words.clear(slot);
        }
    }

    /// A bell came from the host, whichever ring it is for. From any thread; never waits.
    pub fn ring(&self) {
        // Full, it is readable already.
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

    /// The thread.
    fn serve(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(&*self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // Nobody would be woken: sleepers are told instead, by their channels.
                Err(_) => return self.end(),
            }
            let turn = Instant::now();
            // Before anything is looked at: a bell that comes meanwhile has a turn of its own.
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
        // Requests before thresholds: the thresholds for a request are in the page by then.
        self.retain(&mut state, |bell| !is_ready(bell) || bell.take_messages());
        for (number, slot) in &mut state.slots {
            slot.serve(*number, &self.words);
        }
        // Behind all of them: a sleeper may have bells of several slots.
        state.slots.values_mut().for_each(Slot::confirm);
    }

    /// Lets go of bells, and of slots without any.
    fn retain(&self, state: &mut State, mut keep: impl FnMut(&mut Bell) -> bool) {
        state.slots.retain(|number, slot| {
            let has_bells = slot.retain(&mut keep);
            if !has_bells {
                self.words.clear(*number);
            }
            has_bells
        });
    }

    /// Lets go of everybody.
    fn end(&self) {
        self.retain(&mut self.state(), |_| false);
    }
}

#[cfg(test)]
mod tests;
