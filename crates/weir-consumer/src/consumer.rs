//! The trait of consumers, and their errors.

use std::error::Error;
use std::time::Duration;

use thiserror::Error;
use weir_frame::pcapng::Statistics;
use weir_ring::{Mapping, RingError, Words};

use crate::account::{Delivered, Taken};
use crate::counted::Count;
use crate::lanes::Rings;
use crate::source::JoinedFeed;

/// Frames that are taken between two checks of the clock and of signals.
pub const TURN_FRAMES: u64 = 1 << 16;

/// Why a consumer cannot go on.
#[derive(Debug, Error)]
pub enum ConsumerError {
    /// A ring is inconsistent, has lost its writer, or cannot be waited for. The output has lost nothing.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The output failed: frames that it did not take are lost.
    #[error(transparent)]
    Output(Box<dyn Error + Send + Sync>),
    /// The reader of the output has closed it, and wants no more.
    #[error(transparent)]
    ReaderGone(Box<dyn Error + Send + Sync>),
    /// The run was to stop, but the reader of the output did not take the rest.
    #[error(transparent)]
    ReaderStalled(Box<dyn Error + Send + Sync>),
    /// The output has reached its limit, and must be finished as usual.
    #[error(transparent)]
    Complete(Box<dyn Error + Send + Sync>),
}

impl ConsumerError {
    /// Whether no more frames are wanted: the reader of the output ended it, or it is complete. Later frames are not
    /// lost.
    #[must_use]
    pub fn wants_no_more(&self) -> bool {
        use ConsumerError::{Complete, ReaderGone, ReaderStalled};
        matches!(self, ReaderGone(_) | ReaderStalled(_) | Complete(_))
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Frames came.
    Busy,
    /// No frames now.
    Idle,
    /// Frames are there, but must wait for other rings.
    Waiting,
    /// Frames were taken, or are there, and wait for an output that is busy.
    Writing,
    /// Every ring that has joined was read to its end.
    Ended,
}

impl Step {
    /// The result of a round through all rings: whether frames came, and whether no ring is left.
    #[must_use]
    pub fn of_round(moved: bool, is_empty: bool) -> Step {
        match (moved, is_empty) {
            (true, _) => Step::Busy,
            (false, true) => Step::Ended,
            (false, false) => Step::Idle,
        }
    }
}

/// A consumer: it takes the frames of a run.
pub trait Consumer<M: Words = Mapping> {
    /// Adds a feed, whose frames are taken from the oldest on.
    ///
    /// # Errors
    /// [`ConsumerError`] for a ring that is inconsistent, and for an output that does not support its interfaces.
    fn join(&mut self, feed: JoinedFeed<M>) -> Result<(), ConsumerError>;

    /// Its rings.
    fn rings(&self) -> &dyn Rings<M>;

    /// Its rings, to release some.
    fn rings_mut(&mut self) -> &mut dyn Rings<M>;

    /// Takes available frames, at most `frames_max`.
    ///
    /// # Errors
    /// [`ConsumerError`]; frames that were taken before the error count.
    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError>;

    /// Frames taken so far.
    fn delivered(&self) -> Delivered;

    /// The same by feed, at the number of the feed's first interface in the output. Empty if feeds are not counted.
    fn by_interface(&self) -> Vec<Taken> {
        Vec::new()
    }

    /// Writes out taken frames. Called when the rings are empty.
    ///
    /// # Errors
    /// [`ConsumerError`].
    fn flush(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }

    /// Writes out the rest, when no more frames will come; `statistics` are those of the run.
    ///
    /// # Errors
    /// [`ConsumerError`].
    fn finish(&mut self, _statistics: &[Statistics]) -> Result<(), ConsumerError> {
        Ok(())
    }

    /// Of the taken frames, those that the output has kept.
    fn kept(&self) -> Count {
        let Delivered { frames, wire_bytes, .. } = self.delivered();
        Count { frames, wire_bytes }
    }

    /// Whether it waits when the rings are empty. If not, it never sleeps, and waits itself in its output.
    fn rests(&self) -> bool {
        true
    }

    /// Whether frames may wait for 100 ms, or 200 if they are merged, while few come: nobody waits for the output.
    fn allows_delay(&self) -> bool {
        false
    }

    /// After [`Step::Waiting`] and [`Step::Writing`]: the time until frames that wait for other rings may be passed on.
    fn due(&self) -> Duration {
        Duration::ZERO
    }
}
