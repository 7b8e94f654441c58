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

/// Most frames that a consumer takes between two checks of the clock and of signals.
pub const TURN_FRAMES: u64 = 1 << 16;

/// Why a consumer cannot continue.
#[derive(Debug, Error)]
pub enum ConsumerError {
    /// A ring is inconsistent, has lost its writer, or cannot be waited for. The output has lost nothing.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The output failed: frames that it did not take are lost.
    #[error(transparent)]
    Output(Box<dyn Error + Send + Sync>),
    /// The reader of the output has closed it, and wants no more frames.
    #[error(transparent)]
    ReaderGone(Box<dyn Error + Send + Sync>),
    /// The run was about to stop, but the reader of the output did not read the remaining data.
    #[error(transparent)]
    ReaderStalled(Box<dyn Error + Send + Sync>),
    /// The output has reached its limit, and must be finished as usual.
    #[error(transparent)]
    Complete(Box<dyn Error + Send + Sync>),
}

impl ConsumerError {
    /// Whether the consumer wants no more frames, because the reader of the output has ended it, or the output is
    /// complete. Later frames are not lost.
    #[must_use]
    pub fn wants_no_more(&self) -> bool {
        use ConsumerError::{Complete, ReaderGone, ReaderStalled};
        matches!(self, ReaderGone(_) | ReaderStalled(_) | Complete(_))
    }
}

/// Result of a [`Consumer::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Frames were taken.
    Busy,
    /// There are no frames now.
    Idle,
    /// There are frames, but they must wait for other rings.
    Waiting,
    /// The output is busy: frames that were taken, or are in the rings, wait for it.
    Writing,
    /// Every ring that has joined was read to its end.
    Ended,
}

impl Step {
    /// Returns the result of a round through all rings: `moved` tells whether frames were taken, `is_empty` whether no
    /// ring is left.
    #[must_use]
    pub fn of_round(moved: bool, is_empty: bool) -> Step {
        match (moved, is_empty) {
            (true, _) => Step::Busy,
            (false, true) => Step::Ended,
            (false, false) => Step::Idle,
        }
    }
}

/// An output of a run, with its rings: it takes frames, for example to write them to a file.
pub trait Consumer<M: Words = Mapping> {
    /// Adds a feed, whose frames are taken beginning with the oldest.
    ///
    /// # Errors
    /// [`ConsumerError`] for a ring that is inconsistent, and for an output that does not support its interfaces.
    fn join(&mut self, feed: JoinedFeed<M>) -> Result<(), ConsumerError>;

    /// Returns the consumer's rings.
    fn rings(&self) -> &dyn Rings<M>;

    /// Returns the consumer's rings, so that feeds can leave.
    fn rings_mut(&mut self) -> &mut dyn Rings<M>;

    /// Takes available frames, at most `frames_max`.
    ///
    /// # Errors
    /// [`ConsumerError`]; frames that were taken before the error are counted.
    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError>;

    /// Returns the counts of frames so far.
    fn delivered(&self) -> Delivered;

    /// Returns the same counts for each feed, at the index of the feed's first interface in the output. Empty if the
    /// consumer does not count by feed.
    fn by_interface(&self) -> Vec<Taken> {
        Vec::new()
    }

    /// Writes out frames that were taken. Called when the rings are empty.
    ///
    /// # Errors
    /// [`ConsumerError`].
    fn flush(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }

    /// Writes out the remaining data when no more frames will come. `statistics` are those of the run.
    ///
    /// # Errors
    /// [`ConsumerError`].
    fn finish(&mut self, _statistics: &[Statistics]) -> Result<(), ConsumerError> {
        Ok(())
    }

    /// Returns how many of the taken frames the output has kept.
    fn kept(&self) -> Count {
        let Delivered { frames, wire_bytes, .. } = self.delivered();
        Count { frames, wire_bytes }
    }

    /// Whether the consumer waits when the rings are empty. If not, its thread never sleeps: the consumer itself waits
    /// in its output.
    fn rests(&self) -> bool {
        true
    }

    /// Whether frames may be delayed by 100 ms, or 200 ms if they are merged, while few come, because nobody waits for
    /// the output.
    fn allows_delay(&self) -> bool {
        false
    }

    /// Returns the time until frames that wait for other rings may be delivered. Called after [`Step::Waiting`] and
    /// [`Step::Writing`].
    fn due(&self) -> Duration {
        Duration::ZERO
    }
}
