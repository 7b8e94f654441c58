//! Whatever takes the frames of a run.

use std::error::Error;
use std::time::Duration;

use thiserror::Error;
use weir_frame::pcapng::Statistics;
use weir_ring::{Mapping, RingError, Words};

use crate::account::{Delivered, Taken};
use crate::counted::Count;
use crate::lanes::Rings;
use crate::source::JoinedFeed;

/// Frames taken before the clock and the signals are looked at again.
pub const TURN_FRAMES: u64 = 1 << 16;

/// Why a consumer cannot go on.
#[derive(Debug, Error)]
pub enum ConsumerError {
    /// A ring contradicts itself, has lost its writer, or cannot be waited for. The output has lost nothing.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The output failed: frames that it did not take are lost.
    #[error(transparent)]
    Output(Box<dyn Error + Send + Sync>),
    /// The reader of the output has gone: it wants no more.
    #[error(transparent)]
    ReaderGone(Box<dyn Error + Send + Sync>),
    /// The reader of the output stays and takes nothing, and the run was to stop.
    #[error(transparent)]
    ReaderStalled(Box<dyn Error + Send + Sync>),
    /// The output has all that it was to have, and is to be finished as ever.
    #[error(transparent)]
    Complete(Box<dyn Error + Send + Sync>),
}

impl ConsumerError {
    /// Whether no more was wanted: the reader of the output ended it, or it is complete. Later frames are not
    /// lost for anybody.
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
    /// Nothing now.
    Idle,
    /// Frames are there, but must wait for other rings.
    Waiting,
    /// Frames were taken, or are there, and wait for an output that is at work.
    Writing,
    /// Every ring that has joined was read to its end.
    Ended,
}

impl Step {
    /// After a round through all rings: whether there was anything, and whether none is left.
    #[must_use]
    pub fn of_round(moved: bool, is_empty: bool) -> Step {
        match (moved, is_empty) {
            (true, _) => Step::Busy,
            (false, true) => Step::Ended,
            (false, false) => Step::Idle,
        }
    }
}

/// Whatever takes the frames of a run.
pub trait Consumer<M: Words = Mapping> {
    /// Takes the frames of this feed, too, from its oldest on.
    ///
    /// # Errors
    /// [`ConsumerError`] for a ring that contradicts itself, and for an output that cannot take its interfaces.
    fn join(&mut self, feed: JoinedFeed<M>) -> Result<(), ConsumerError>;

    /// Its rings.
    fn rings(&self) -> &dyn Rings<M>;

    /// The same, to let them go.
    fn rings_mut(&mut self) -> &mut dyn Rings<M>;

    /// Takes available frames, at most `frames_max`.
    ///
    /// # Errors
    /// [`ConsumerError`]; frames that were taken before it count.
    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError>;

    /// Frames taken so far.
    fn delivered(&self) -> Delivered;

    /// The same by feed: at the number that the feed's first interface has in the output. Empty if it is not counted.
    fn by_interface(&self) -> Vec<Taken> {
        Vec::new()
    }

    /// Makes taken frames visible outside, when the rings are empty.
    ///
    /// # Errors
    /// [`ConsumerError`].
    fn flush(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }

    /// Lets out the rest; `statistics` are those of the run, and nothing comes any more.
    ///
    /// # Errors
    /// [`ConsumerError`].
    fn finish(&mut self, _statistics: &[Statistics]) -> Result<(), ConsumerError> {
        Ok(())
    }

    /// Of the frames taken, those that are safely out.
    fn kept(&self) -> Count {
        let Delivered { frames, wire_bytes, .. } = self.delivered();
        Count { frames, wire_bytes }
    }

    /// Whether it waits between looks that found nothing: if not, it waits by itself and sleeps never.
    fn rests(&self) -> bool {
        true
    }

    /// After [`Step::Waiting`] and [`Step::Writing`]: how long until frames may be passed on that wait for other rings.
    fn due(&self) -> Duration {
        Duration::ZERO
    }
}
