//! Whatever takes the frames of a run.

use std::error::Error;
use std::time::Duration;

use thiserror::Error;
use weir_frame::pcapng::Statistics;
use weir_ring::{Mapping, Reader, RingError};

use crate::account::{Delivered, Taken};
use crate::counted::Count;

/// Frames taken before the clock and the signals are looked at again.
pub const TURN_FRAMES: u64 = 1 << 16;

/// Why a consumer cannot go on.
#[derive(Debug, Error)]
pub enum ConsumerError {
    /// A ring contradicts itself, or cannot be waited for. The output has lost nothing.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The output failed: what it did not take is lost.
    #[error(transparent)]
    Output(Box<dyn Error + Send + Sync>),
    /// The reader of the output has gone: it wants no more.
    #[error(transparent)]
    ReaderGone(Box<dyn Error + Send + Sync>),
    /// The reader of the output stays and takes nothing, and the run was to stop.
    #[error(transparent)]
    ReaderStalled(Box<dyn Error + Send + Sync>),
}

impl ConsumerError {
    /// Whether the reader of the output ended it: what it did not wait for is nobody's loss.
    #[must_use]
    pub fn is_readers_choice(&self) -> bool {
        matches!(self, ConsumerError::ReaderGone(_) | ConsumerError::ReaderStalled(_))
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
    /// Nothing more.
    Ended,
}

/// Whatever takes the frames of a run.
pub trait Consumer {
    /// Takes what is there, at most `frames_max` frames.
    ///
    /// # Errors
    /// [`ConsumerError`]; what was taken before it counts.
    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError>;

    /// Frames taken so far.
    fn delivered(&self) -> Delivered;

    /// The same by interface id; empty if it is not counted.
    fn by_interface(&self) -> Vec<Taken> {
        Vec::new()
    }

    /// Lets what was taken be seen outside, when the rings are empty.
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

    /// The cursors, ring by ring.
    fn readers(&self) -> Vec<Reader<Mapping>>;

    /// How far ring number `ring` was read: the ordinal of its next frame.
    fn ordinal(&self, ring: usize) -> u64;

    /// Whether it waits between looks that found nothing: if not, it waits by itself and sleeps never.
    fn rests(&self) -> bool {
        true
    }

    /// After [`Step::Waiting`]: how long until frames may be passed on that wait for other rings.
    fn due(&self) -> Duration {
        Duration::ZERO
    }

    /// Frames that the rings have had so far.
    fn written(&self) -> u64 {
        self.readers().iter().map(|reader| reader.ring().frames_written()).sum()
    }

    /// Frames that were written and neither taken nor lapped: in the rings, or copied and held.
    fn unread(&self) -> u64;

    /// How much of its fullest ring lies before this consumer: 0 to 1, where it is lapped.
    fn fill(&self) -> f64;
}
