//! A feed of a daemon, and the feed's final ledger.

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
    /// The consumers that the daemon wakes, by the slots of their wakers in this process.
    pub(super) sleepers: BTreeMap<WakerSlot, HostSleeper>,
    pub(super) next: u32,
    /// The last known ledger.
    pub(super) latest: Ledger,
    /// Set once the feed has stopped: the positions in the rings at which it ends, if another writer still fills the
    /// rings.
    pub(super) end: Option<Option<Vec<u64>>>,
}

/// A consumer that the daemon wakes.
pub(super) struct HostSleeper {
    /// The daemon's number for the consumer.
    pub(super) number: u64,
    /// The positions up to which the consumer has read.
    pub(super) positions: ReadPositions,
    pub(super) first_line: usize,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of the drop that counts frames which the daemon did not copy into a guest's ring.
const RELAY: &str = "relay";

impl HostFeed {
    /// Closes the feed; further calls do nothing. If the daemon has ended, the final ledger is computed from its rings
    /// and the last known ledger.
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
                // Frames that readers got before the memory was removed were captured, even if the daemon does not
                // report them.
                let untold = captured.saturating_sub(ledger.captured);
                if is_taken_away {
                    ledger.captured = bound(ledger.captured + untold);
                    // The daemon may have counted some of these frames as dropped, because it did not copy them in
                    // time.
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
                // It is not known how many frames were filtered or lost since then.
                ledger.offered = ledger.accounted_for();
                ledger
            }
        };
        state.end = Some(until);
    }

    /// Waits for the last frames of rings in a device. Their writer is on the host, and may outlive the daemon in this
    /// guest: the host closes the rings when it notices that the daemon has ended. If the host has removed the device,
    /// nothing closes the rings; then the wait gives readers the time to report how far they have read.
    fn wait_for_writer(&self, has_daemon_ended: bool) {
        let (rings, begin) = (self.remote.rings(), Instant::now());
        let is_in_device = has_daemon_ended && !self.remote.opened().parts.is_empty();
        let waits = is_in_device || self.is_taken_away();
        while waits && !rings.iter().all(Ring::is_closed) && begin.elapsed() < WRITER_END_MAX {
            thread::sleep(Duration::from_millis(1));
            // Record the position now: the device may be removed at any time.
            let _ = self.remote.frames_written();
        }
    }

    /// Returns true if a ring that had frames now reads as empty: its device was unplugged.
    fn is_taken_away(&self) -> bool {
        let written = self.remote.frames_written();
        let mut rings = self.remote.rings().iter().zip(written);
        rings.any(|(ring, written)| written > 0 && ring.writer_word(WriterWord::Opened) == 0)
    }

    /// Records how far a consumer has read. The broker of a guest does not record it: its consumers are processes of
    /// several users, none of which may influence the counts that are reported to another.
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

/// Returns the maximum of each pair.
fn max_of(these: &[u64], those: &[u64]) -> Vec<u64> {
    let those = those.iter().copied().chain(std::iter::repeat(0));
    these.iter().zip(those).map(|(one, other)| other.max(*one)).collect()
}

/// Limits a count that another machine reports, so that sums of such counts do not overflow.
fn bound(count: u64) -> u64 {
    count.min(u64::MAX >> 16)
}

/// Converts a daemon's ledger. The numbers of a hostile daemon are limited, so that sums do not overflow.
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
