//! The channels that wake a consumer, one for each feed that it reads: made here, or by the process that it is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use weir_capture::CaptureError;
use weir_ring::wake::{Sleeper, Waker};

use crate::limits::REMOTE_CHANNELS_MAX;

/// How a consumer is woken.
pub enum Channels {
    /// It sleeps in the probe's own process, and channels are made as feeds are attached.
    Made {
        /// The sleeper.
        sleeper: Arc<Sleeper>,
        /// The probe's own channel: wakes the consumer when it is told something.
        probe_waker: Waker,
    },
    /// It is another process, which makes them.
    Given(GivenChannels),
}

/// Channels that another process has made and handed over.
pub struct GivenChannels {
    lines: usize,
    /// Those that no feed has taken yet, by their numbers.
    spare: VecDeque<(usize, Waker)>,
    /// Those that one has: they must not hang up before the other process knows that it has left the feed, or it would
    /// take the writer for dead.
    taken: BTreeMap<usize, TakenChannel>,
    given_count: usize,
    is_withdrawn: bool,
}

struct TakenChannel {
    waker: Waker,
    first_line: usize,
    count: usize,
}

impl Channels {
    /// Those of a consumer that sleeps in this process.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn made(sleeper: Arc<Sleeper>) -> Result<Channels, CaptureError> {
        let probe_waker = sleeper.waker()?;
        Ok(Channels::Made { sleeper, probe_waker })
    }

    /// Those of a consumer in another process, whose wake page has so many lines.
    #[must_use]
    pub fn given(lines: usize) -> Channels {
        Channels::Given(GivenChannels {
            lines,
            spare: VecDeque::new(),
            taken: BTreeMap::new(),
            given_count: 0,
            is_withdrawn: false,
        })
    }

    /// Lines of the consumer's wake page: so many rings can it read at a time.
    pub(super) fn lines(&self) -> usize {
        match self {
            Channels::Made { probe_waker, .. } => probe_waker.lines(),
            Channels::Given(given) => given.lines,
        }
    }

    /// A channel for a feed that has these lines, and its number if it was given.
    pub(super) fn take(
        &mut self,
        first_line: usize,
        count: usize,
    ) -> Result<(Waker, Option<usize>), CaptureError> {
        match self {
            Channels::Made { sleeper, .. } => Ok((sleeper.waker()?, None)),
            Channels::Given(given) => {
                let (number, waker) = given.take(first_line, count)?;
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
        if let Channels::Made { probe_waker, .. } = self {
            probe_waker.wake();
        }
    }
}

impl GivenChannels {
    /// One more; gives its number.
    pub(super) fn add(&mut self, waker: Waker) -> Result<usize, CaptureError> {
        let (lines, rings) = (waker.lines(), self.lines);
        if self.is_withdrawn {
            return Err(CaptureError::Ended);
        }
        if lines < rings {
            return Err(CaptureError::NarrowWaker { lines, first_line: 0, rings });
        }
        if self.spare.len() + self.taken.len() >= REMOTE_CHANNELS_MAX {
            return Err(CaptureError::Options(format!(
                "a consumer in another process has {REMOTE_CHANNELS_MAX} channels, and gets no more \
                 before it lets go of those of feeds that it has left"
            )));
        }
        let number = self.given_count;
        self.spare.push_back((number, waker));
        self.given_count += 1;
        Ok(number)
    }

    fn take(&mut self, first_line: usize, count: usize) -> Result<(usize, Waker), CaptureError> {
        let Some((number, waker)) = self.spare.pop_front() else {
            return Err(CaptureError::Options(
                "a consumer in another process has no channel left; it gives one for each feed \
                 that it is to read"
                    .into(),
            ));
        };
        match waker.try_clone() {
            Ok(own) => {
                self.taken.insert(number, TakenChannel { waker, first_line, count });
                Ok((number, own))
            }
            Err(error) => {
                self.spare.push_front((number, waker));
                Err(error.into())
            }
        }
    }

    /// A feed has taken this one in vain: the other process was not told, and it is for the next feed.
    pub(super) fn put_back(&mut self, number: usize) {
        if let Some(taken) = self.taken.remove(&number) {
            self.spare.push_front((number, taken.waker));
        }
    }

    /// The other process knows that it has left the feed; gives the lines that are free now.
    pub(super) fn let_go(&mut self, number: usize) -> Option<(usize, usize)> {
        let TakenChannel { first_line, count, .. } = self.taken.remove(&number)?;
        Some((first_line, count))
    }

    /// The consumer was withdrawn: all of its channels hang up, and it gives no more.
    pub(super) fn withdraw(&mut self) {
        self.spare.clear();
        self.taken.clear();
        self.is_withdrawn = true;
    }
}
