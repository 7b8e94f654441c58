//! The sleepers of one slot.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use weir_ring::doorbell::AWAKE;
use weir_ring::wake::{Asked, Waker};
use weir_ring::{Mapping, Ring};

use super::BellId;
use crate::arming::{Sleepers, arm};
use crate::error::GuestError;
use crate::words::Words;

/// A sleeper on this slot.
#[derive(Debug)]
pub(super) struct Bell {
    pub(super) id: BellId,
    waker: Waker,
    /// The sleeper's line for the slot's ring.
    line: usize,
    /// Whether the sleeper was woken for the end of the ring.
    is_told_end: bool,
    /// The epoll instance that polls the sleeper's channel.
    epoll: Arc<OwnedFd>,
}

impl Bell {
    pub(super) fn new(
        id: BellId,
        waker: Waker,
        line: usize,
        epoll: &Arc<OwnedFd>,
    ) -> Result<Bell, GuestError> {
        epoll::add(&**epoll, &waker, EventData::new_u64(id.0), EventFlags::IN)
            .map_err(GuestError::os("polling a sleeper's channel"))?;
        Ok(Bell { id, waker, line, is_told_end: false, epoll: Arc::clone(epoll) })
    }

    /// Receives the messages of the sleeper. Returns false if it is gone.
    pub(super) fn take_messages(&mut self) -> bool {
        self.waker.take_messages() != Asked::Gone
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // Removed while the descriptor is open. Otherwise, if another process has a copy of the channel, the epoll
        // instance would keep reporting messages that nobody receives.
        let _ = epoll::delete(&*self.epoll, &self.waker);
    }
}

/// A ring, and the sleepers that wait for it.
pub(super) struct Slot {
    ring: Ring<Mapping>,
    bells: Vec<Bell>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("bells", &self.bells).finish_non_exhaustive()
    }
}

impl Slot {
    pub(super) fn new(ring: Ring<Mapping>) -> Slot {
        Slot { ring, bells: Vec::new() }
    }

    pub(super) fn add(&mut self, ring: Ring<Mapping>, bell: Bell) {
        self.ring = ring;
        self.bells.push(bell);
    }

    /// Drops the bells for which `keep` returns false. Returns whether any are left.
    pub(super) fn retain(&mut self, keep: &mut impl FnMut(&mut Bell) -> bool) -> bool {
        self.bells.retain_mut(keep);
        !self.bells.is_empty()
    }

    /// Wakes all sleepers whose thresholds are reached, arms the host's bell for the others, and reports to the host
    /// how far they have read.
    pub(super) fn serve(&mut self, number: u32, words: &Words) {
        arm(words.threshold(number), self);
        if self.ring.is_closed() {
            for bell in self.bells.iter_mut().filter(|bell| !bell.is_told_end) {
                bell.waker.wake();
                bell.is_told_end = true;
            }
        }
        let positions = self.bells.iter().map(|bell| bell.waker.position(bell.line));
        words.set_position(number, positions.min().unwrap_or(0));
    }

    /// Confirms thresholds to the sleepers that have asked for it. All slots must have been armed for these thresholds,
    /// and then looked at once more.
    pub(super) fn confirm(&mut self) {
        for Bell { waker, .. } in &mut self.bells {
            waker.begin_confirmation();
            waker.finish_confirmation();
        }
    }
}

impl Sleepers for Slot {
    fn look(&mut self) -> u64 {
        let ordinal = self.ring.frames_written();
        for Bell { waker, line, .. } in &mut self.bells {
            waker.wake_if_due(*line, ordinal);
        }
        ordinal
    }

    fn earliest(&self, ordinal: u64) -> u64 {
        let thresholds = self.bells.iter().map(|bell| bell.waker.wake_threshold(bell.line));
        thresholds.filter(|&threshold| threshold > ordinal).min().unwrap_or(AWAKE)
    }
}
