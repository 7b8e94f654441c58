//! One feed of a daemon, and its account when it ends.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use weir_client::{RemoteFeed, protocol};
use weir_ring::geometry::WriterWord;
use weir_ring::wake::ReadPositions;
use weir_ring::{Ledger, Ring};

use super::names::interned;
use crate::feed::control::{FeedHandle, FeedSlot, WakerSlot};
use crate::feed::location::FilterLocation;
use crate::limits::WRITER_END_MAX;

/// An open feed.
pub(super) struct HostFeed {
    pub(super) remote: RemoteFeed,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// By this process's numbers.
    pub(super) sleepers: BTreeMap<WakerSlot, HostSleeper>,
    pub(super) next: u32,
    /// The ledger as it was read last.
    pub(super) latest: Ledger,
    /// Once it has stopped: where it ends in its rings, if others go on writing them.
    pub(super) end: Option<Option<Vec<u64>>>,
}

/// A consumer that the daemon wakes.
pub(super) struct HostSleeper {
    /// The daemon's number of it.
    pub(super) number: u64,
    /// How far it has read; the line of the first ring.
    pub(super) positions: ReadPositions,
    pub(super) first_line: usize,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The drop of frames that the daemon did not copy into a guest's ring.
const RELAY: &str = "relay";

impl HostFeed {
    /// Closes it, once. A daemon that has gone leaves what its rings have, and the ledger that was read last.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.state);
        if state.end.is_some() {
            return;
        }
        let closed = self.remote.close();
        if closed.is_err() {
            self.remote.forget();
        }
        self.wait_for_writer(closed.is_err());
        state.sleepers.values().for_each(|sleeper| self.note_read(sleeper));
        let written = self.remote.frames_written();
        let is_taken_away = self.is_taken_away();
        let (told, until) = match closed {
            Ok(closed) => {
                let until = is_taken_away.then(|| max_of(&written, &closed.until));
                let until = until.or((!closed.ended).then_some(closed.until));
                (closed.ledger.map(ledger_of), until)
            }
            Err(_) => (None, Some(written)),
        };
        let from = self.remote.opened().from.iter().chain(std::iter::repeat(&0));
        let read =
            until.iter().flatten().zip(from).map(|(until, from)| until.saturating_sub(*from));
        let captured = bound(read.fold(0, u64::saturating_add));
        state.latest = match told {
            Some(mut ledger) => {
                // Frames that its readers got before the memory was taken away were captured, whatever
                // the daemon reports.
                let untold = captured.saturating_sub(ledger.captured);
                if is_taken_away {
                    ledger.captured = bound(ledger.captured + untold);
                    // Of those, the daemon may have counted some as not copied in time.
                    let late = ledger.drops.get_mut(RELAY).map_or(0, |drop| {
                        let late = untold.min(*drop);
                        *drop -= late;
                        late
                    });
                    ledger.offered = bound(ledger.offered + untold - late);
                }
                ledger
            }
            None => {
                let mut ledger = Ledger { captured, ..std::mem::take(&mut state.latest) };
                // The number of frames that came since and were left out or lost is unknown.
                ledger.offered = ledger.accounted_for();
                ledger
            }
        };
        state.end = Some(until);
    }

    /// Waits for the last frames of rings in a device, whose writer may outlive the daemon here: the machine's host
    /// closes them when it hears of its end. Where the host has taken the device away, nothing closes them, and
    /// readers say within the time how far they have read.
    fn wait_for_writer(&self, has_daemon_ended: bool) {
        let (rings, begin) = (self.remote.rings(), Instant::now());
        let is_in_device = has_daemon_ended && !self.remote.opened().parts.is_empty();
        let waits = is_in_device || self.is_taken_away();
        while waits && !rings.iter().all(Ring::is_closed) && begin.elapsed() < WRITER_END_MAX {
            thread::sleep(Duration::from_millis(1));
            // Seen now: the device may be taken away next.
            let _ = self.remote.frames_written();
        }
    }

    /// Whether a ring had frames, and reads as if it never had any: the device that it is in was unplugged.
    fn is_taken_away(&self) -> bool {
        let written = self.remote.frames_written();
        let mut rings = self.remote.rings().iter().zip(written);
        rings.any(|(ring, written)| written > 0 && ring.writer_word(WriterWord::Opened) == 0)
    }

    /// Notes how far a consumer has read. Not in a guest's broker: its consumers are other users' processes, of whom
    /// none is to change what another is told.
    pub(super) fn note_read(&self, sleeper: &HostSleeper) {
        if self.remote.opened().region.is_none() {
            for ring in 0..self.remote.rings().len() {
                let ordinal = sleeper.positions.position(sleeper.first_line + ring);
                self.remote.note_read(ring, ordinal);
            }
        }
    }

    pub(super) fn handle(&self, slot: FeedSlot) -> FeedHandle {
        let (rings, from) = (self.remote.rings().to_vec(), self.remote.opened().from.clone());
        FeedHandle { slot, rings, from, location: FilterLocation::Nowhere, pace: None }
    }
}

/// The greater of each two.
fn max_of(these: &[u64], those: &[u64]) -> Vec<u64> {
    let those = those.iter().copied().chain(std::iter::repeat(0));
    these.iter().zip(those).map(|(one, other)| other.max(*one)).collect()
}

/// A count that another machine tells, so that sums of such counts do not overflow.
fn bound(count: u64) -> u64 {
    count.min(u64::MAX >> 16)
}

/// A daemon's ledger. Sums of numbers of a hostile daemon do not overflow.
pub(super) fn ledger_of(told: protocol::Ledger) -> Ledger {
    let mut drops = BTreeMap::new();
    for (name, count) in told.drops {
        let own: &mut u64 = drops.entry(interned(&name)).or_default();
        *own = bound(own.saturating_add(bound(count)));
    }
    Ledger {
        offered: bound(told.offered),
        filtered: bound(told.filtered),
        filtered_uncounted: told.filtered_uncounted,
        blocked: bound(told.blocked),
        sampled: bound(told.sampled),
        captured: bound(told.captured),
        kept_bytes: bound(told.kept_bytes),
        wire_bytes: bound(told.wire_bytes),
        super_frames: bound(told.super_frames),
        drops,
        missed_before: told.missed_before.map(bound),
    }
}
