//! A consumer that its caller drives by asking for frames.
//!
//! It is for libraries: the program decides when it calls them. Frames are merged by time, as for
//! [`Ordered`](crate::Ordered). Nothing runs between two calls.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use weir_ring::RingError;
use weir_ring::idle::{SLEEP_MAX, Wait};
use weir_ring::wake::Woken;

use crate::account::Delivered;
use crate::consumer::{ConsumerError, Step};
use crate::lanes::Rings;
use crate::limits::RUNS_PER_UPKEEP;
use crate::merge::{Merge, Turn};
use crate::numbering::Numbering;
use crate::sink::Run;
use crate::source::FrameSource;
use crate::upkeep::Upkeep;
use crate::waiting::Waiting;

/// Result of a [`Pull::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// This many frames were taken: [`Pull::run`] returns them.
    Frames(u64),
    /// No frame was taken within the limit.
    Nothing,
    /// A signal or the sleeper's [`Interrupter`](weir_ring::wake::Interrupter) has ended the wait.
    Interrupted,
    /// No more frames will come: every ring was read to its end, and no more feeds will join.
    Ended,
}

/// A consumer that its caller drives.
pub struct Pull<S: FrameSource> {
    source: S,
    merge: Merge,
    wire_bytes: u64,
    upkeep: Upkeep,
    waiting: Waiting,
    /// Longest pause while frames come: a frame may have to wait for its end.
    pause_max: Duration,
    /// Number of calls until changes and the clock are checked again.
    left: u32,
}

impl<S: FrameSource> Pull<S> {
    /// Creates a consumer of `source`. `slack` as in [`Merge`]. `run_frames_max` is a hint: above 1, more is copied at
    /// a time.
    pub fn new(source: S, slack: Duration, run_frames_max: u64) -> Pull<S> {
        Pull {
            source,
            merge: Merge::new(slack, run_frames_max),
            wire_bytes: 0,
            upkeep: Upkeep::new(),
            waiting: Waiting::new(),
            pause_max: Duration::MAX,
            left: 0,
        }
    }

    /// Sets the longest pause while frames come. A frame may have to wait for the end of the pause. By default the idle
    /// strategy chooses the length.
    pub fn set_pause_max(&mut self, pause_max: Duration) {
        self.pause_max = pause_max;
    }

    /// Returns the source.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Waits at most `limit` for frames, and takes the next ones that are due, at most `frames_max`, all of one ring.
    ///
    /// # Errors
    /// [`ConsumerError::Ring`].
    pub fn next(&mut self, frames_max: u64, limit: Duration) -> Result<Pulled, ConsumerError> {
        let mut begun = None;
        loop {
            let mut is_complete = false;
            // Most calls find frames. They read no clock and take no lock.
            self.left = self.left.saturating_sub(1);
            if self.left == 0 {
                self.left = RUNS_PER_UPKEEP;
                is_complete = self.source.is_complete();
                self.upkeep.before_turn(&mut self.source, &mut self.merge)?;
            }
            let step = match self.merge.advance(frames_max)? {
                Turn::Passed(frames) => {
                    self.wire_bytes += self.merge.run().count.wire_bytes;
                    return Ok(Pulled::Frames(frames));
                }
                Turn::Ended if is_complete => return Ok(Pulled::Ended),
                Turn::Waiting => Step::Waiting,
                Turn::Ended | Turn::Empty => Step::Idle,
            };
            // A round without frames must have checked everything before the call waits.
            if std::mem::replace(&mut self.left, 0) != RUNS_PER_UPKEEP {
                continue;
            }
            let begun = *begun.get_or_insert_with(Instant::now);
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(Pulled::Nothing);
            }
            let wait = self.waiting.next(self.merge.rings(), step, || self.merge.due());
            let wait = match wait {
                Wait::Pause(pause) => Wait::Pause(pause.min(self.pause_max)),
                Wait::Sleep => Wait::Sleep,
            };
            let (rings, sleeper) = (self.merge.rings(), self.source.sleeper());
            match self.waiting.carry_out(wait, rings, sleeper, left.min(SLEEP_MAX))? {
                Some(Woken::WriterGone(channel)) => {
                    self.upkeep.writer_gone(self.merge.rings_mut(), channel);
                }
                Some(Woken::Interrupted) => return Ok(Pulled::Interrupted),
                _ => {}
            }
        }
    }

    /// Makes the next call of [`next`](Pull::next) apply changes before it takes frames, so that feeds that have left
    /// are not read further.
    pub fn look_at_changes(&mut self) {
        self.left = 0;
    }

    /// Returns the frames that [`next`](Pull::next) took.
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        self.merge.run()
    }

    /// Returns a descriptor for `poll`, `select` and `epoll`, the same one each time. It is readable when
    /// [`next`](Pull::next) may find frames, and before it is armed for the first time.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn pollable(&self) -> Result<BorrowedFd<'_>, RingError> {
        self.source.sleeper().pollable()
    }

    /// Arms [`pollable`](Pull::pollable): the descriptor becomes readable when [`next`](Pull::next) should be called,
    /// or after `limit`.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn arm(&mut self, limit: Duration) -> Result<(), RingError> {
        // Frames that were copied already do not reach a threshold.
        let limit = match self.merge.held() {
            0 => limit.min(SLEEP_MAX),
            _ if self.merge.is_due()? => Duration::ZERO,
            _ => limit.min(self.merge.due()),
        };
        let readers = self.merge.rings().readers();
        let armed = readers.iter().map(|(line, reader)| (*line, reader));
        if let Some(Woken::WriterGone(channel)) = self.source.sleeper().arm_on(armed, 1, limit)? {
            self.upkeep.writer_gone(self.merge.rings_mut(), channel);
        }
        self.left = 0;
        Ok(())
    }

    /// Returns the rings.
    #[must_use]
    pub fn rings(&self) -> &dyn Rings {
        self.merge.rings()
    }

    /// Returns, for each ring of a feed, the ordinal of the next frame that was not taken. Another reader can continue
    /// there.
    #[must_use]
    pub fn positions(&self, key: u64) -> Vec<u64> {
        self.merge.positions(key)
    }

    /// Reports, once, that a writer is gone and has left rings open. They were read to their last frame.
    pub fn take_gone(&mut self) -> Option<RingError> {
        self.upkeep.take_gone()
    }

    /// Returns the number of frames that were copied from rings and not taken, because they wait for older frames of
    /// other rings.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.merge.held()
    }

    /// Returns the numbers of the interfaces so far. Records use these numbers.
    #[must_use]
    pub fn numbering(&self) -> &Numbering {
        self.merge.numbering()
    }

    /// Returns the counts of frames so far.
    #[must_use]
    pub fn delivered(&self) -> Delivered {
        Delivered {
            frames: self.merge.passed(),
            wire_bytes: self.wire_bytes,
            lapped: self.merge.lapped(),
            late: self.merge.late(),
            untriggered: 0,
            after_limit: 0,
        }
    }
}

#[cfg(test)]
#[path = "pull_tests.rs"]
mod tests;
