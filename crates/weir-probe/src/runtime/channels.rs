//! Where the channels to a consumer come from, one for each feed that wakes it.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_capture::CaptureError;
use weir_ring::wake::{Sleeper, Waker};

/// Where the channels to a consumer come from.
pub enum Channels {
    /// It sleeps on this in the probe's own process, so they are made as feeds are attached.
    Made {
        /// What it sleeps on.
        sleeper: Arc<Sleeper>,
        /// A channel of the probe's own: the consumer is woken by it when it is told something.
        told: Waker,
    },
    /// It is another process, which makes them.
    Given(Given),
}

/// Channels that another process has made and handed over, and that no feed has taken yet.
pub struct Given {
    lines: usize,
    spare: VecDeque<(usize, Waker)>,
    /// How many it has ever given: they are numbered from 0.
    ever: usize,
}

impl Channels {
    /// What a consumer of this process sleeps on.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn made(sleeper: Arc<Sleeper>) -> Result<Channels, CaptureError> {
        let told = sleeper.waker()?;
        Ok(Channels::Made { sleeper, told })
    }

    /// Another process makes them, on a wake page of so many lines.
    #[must_use]
    pub fn given(lines: usize) -> Channels {
        Channels::Given(Given { lines, spare: VecDeque::new(), ever: 0 })
    }

    /// Lines of the consumer's wake page: so many rings can it read at a time.
    pub(super) fn lines(&self) -> usize {
        match self {
            Channels::Made { told, .. } => told.lines(),
            Channels::Given(given) => given.lines,
        }
    }

    /// A channel for one more feed, and its number if it was given.
    pub(super) fn take(&mut self) -> Result<(Waker, Option<usize>), CaptureError> {
        match self {
            Channels::Made { sleeper, .. } => Ok((sleeper.waker()?, None)),
            Channels::Given(given) => {
                let (number, waker) = given.spare.pop_front().ok_or_else(|| {
                    CaptureError::Options(
                        "a consumer in another process has no channel left; it gives one for each \
                         feed that it is to read"
                            .into(),
                    )
                })?;
                Ok((waker, Some(number)))
            }
        }
    }

    /// Whether writers can wait for the consumer: not if it is another process, which could hold them up.
    pub(super) fn may_hold_up(&self) -> bool {
        matches!(self, Channels::Made { .. })
    }

    /// The consumer is to look at what it was told.
    pub(super) fn wake(&self) {
        // Whoever carries messages to another process waits on the updates themselves.
        if let Channels::Made { told, .. } = self {
            told.wake();
        }
    }
}

impl Given {
    /// One more; gives its number.
    pub(super) fn add(&mut self, waker: Waker) -> usize {
        let number = self.ever;
        self.spare.push_back((number, waker));
        self.ever += 1;
        number
    }
}
