//! The channels that wake a consumer, one for each feed that it reads. They are created by the probe, or by the
//! consumer's process.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use weir_capture::CaptureError;
use weir_ring::wake::{Sleeper, Waker};

use crate::core::FeedId;
use crate::limits::REMOTE_CHANNELS_MAX;

/// The way in which a consumer is woken.
pub enum Channels {
    /// The consumer sleeps in the probe's process. A channel is created whenever a feed is attached.
    Made {
        /// The sleeper.
        sleeper: Arc<Sleeper>,
        /// The probe's own channel: wakes the consumer when there are updates for it.
        probe_waker: Waker,
    },
    /// The consumer is in another process, which creates the channels.
    Given(GivenChannels),
}

/// Channels that another process has created and sent to the probe.
pub struct GivenChannels {
    /// The lines of the wake page that these channels may use.
    lines: Range<usize>,
    /// The channels that no feed has taken yet, with their numbers.
    spare: VecDeque<(usize, Waker)>,
    /// The channels that a feed has taken, by their numbers.
    taken: BTreeMap<usize, TakenChannel>,
    given_count: usize,
    is_withdrawn: bool,
}

/// A channel that a feed has taken, and its lines of the wake page. Both stay until the feed's owner has released them
/// *and* the other process knows that it has left the feed: it sleeps on those lines, and if a channel hung up, it
/// would believe that the writer had died.
struct TakenChannel {
    /// Keeps the channel from hanging up.
    _waker: Waker,
    feed: FeedId,
    lines: Range<usize>,
    /// The feed's owner still wakes the consumer with this channel.
    is_attached: bool,
    peer: PeerState,
}

/// The state of the feed that has a channel, as the other process knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerState {
    Nothing,
    Joined,
    Left,
    /// The process does not use the channel any more, or was never told of the feed.
    LetGo,
}

impl Channels {
    /// Creates the channels of a consumer that sleeps in this process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn made(sleeper: Arc<Sleeper>) -> Result<Channels, CaptureError> {
        let probe_waker = sleeper.waker()?;
        Ok(Channels::Made { sleeper, probe_waker })
    }

    /// Creates the channels of a consumer in another process. `lines` are the lines of its wake page for these
    /// channels.
    #[must_use]
    pub fn given(lines: Range<usize>) -> Channels {
        Channels::Given(GivenChannels {
            lines,
            spare: VecDeque::new(),
            taken: BTreeMap::new(),
            given_count: 0,
            is_withdrawn: false,
        })
    }

    /// Returns the lines of the consumer's wake page for its feeds. Their number is the most rings that it can read at
    /// a time.
    pub(super) fn lines(&self) -> Range<usize> {
        match self {
            Channels::Made { probe_waker, .. } => 0..probe_waker.lines(),
            Channels::Given(given) => given.lines.clone(),
        }
    }

    /// Returns a channel for a feed that has these lines; also its number, if another process has created it.
    pub(super) fn take(
        &mut self,
        feed: FeedId,
        lines: Range<usize>,
    ) -> Result<(Waker, Option<usize>), CaptureError> {
        match self {
            Channels::Made { sleeper, .. } => Ok((sleeper.waker()?, None)),
            Channels::Given(given) => {
                let (number, waker) = given.take(feed, lines)?;
                Ok((waker, Some(number)))
            }
        }
    }

    /// Tells whether writers may wait for the consumer. A consumer in another process could block them.
    pub(super) fn may_hold_up(&self) -> bool {
        matches!(self, Channels::Made { .. })
    }

    /// Wakes the consumer, because it has updates.
    pub(super) fn wake(&self) {
        // For a consumer in another process, a thread waits for the updates themselves.
        if let Channels::Made { probe_waker, .. } = self {
            probe_waker.wake();
        }
    }
}

impl GivenChannels {
    /// Adds a channel. Returns its number.
    pub(super) fn add(&mut self, waker: Waker) -> Result<usize, CaptureError> {
        let (lines, rings) = (waker.lines(), self.lines.end);
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

    fn take(&mut self, feed: FeedId, lines: Range<usize>) -> Result<(usize, Waker), CaptureError> {
        let Some((number, waker)) = self.spare.pop_front() else {
            return Err(CaptureError::Options(
                "a consumer in another process has no channel left; it gives one for each feed \
                 that it is to read"
                    .into(),
            ));
        };
        let own = waker.try_clone()?;
        let (is_attached, peer) = (true, PeerState::Nothing);
        let taken = TakenChannel { _waker: waker, feed, lines, is_attached, peer };
        self.taken.insert(number, taken);
        Ok((number, own))
    }

    /// Records that the other process is told to read the feed which has this channel.
    pub(super) fn joined(&mut self, number: usize) {
        if let Some(taken) = self.taken.get_mut(&number) {
            taken.peer = PeerState::Joined;
        }
    }

    /// Records that the process is told that it has left this feed.
    pub(super) fn left(&mut self, feed: FeedId) {
        let of = |taken: &&mut TakenChannel| taken.feed == feed && taken.peer == PeerState::Joined;
        self.taken.values_mut().filter(of).for_each(|taken| taken.peer = PeerState::Left);
    }

    /// Records that the process will be told neither that it reads this feed nor that it has left it. Returns the lines
    /// that are free now.
    pub(super) fn not_told(&mut self, feed: FeedId) -> Vec<Range<usize>> {
        let of = |taken: &&mut TakenChannel| taken.feed == feed && taken.peer == PeerState::Left;
        self.taken.values_mut().filter(of).for_each(|taken| taken.peer = PeerState::LetGo);
        self.free_lines()
    }

    /// Records that the process does not sleep on the lines of this channel any more. Has an effect only if the process
    /// was told that it has left the feed. Returns the lines that are free now.
    pub(super) fn let_go(&mut self, number: usize) -> Vec<Range<usize>> {
        if let Some(taken) =
            self.taken.get_mut(&number).filter(|taken| taken.peer == PeerState::Left)
        {
            taken.peer = PeerState::LetGo;
        }
        self.free_lines()
    }

    /// Records that the feed's owner does not use this channel any more. Returns the lines that are free now.
    pub(super) fn detached(&mut self, number: usize) -> Vec<Range<usize>> {
        if let Some(taken) = self.taken.get_mut(&number) {
            taken.is_attached = false;
        }
        self.free_lines()
    }

    /// Releases the channels that nobody uses any more, and returns their lines. A channel of a feed of which the other
    /// process was never told cannot be used again: the owner of that feed may have made requests on it that the next
    /// owner would not make.
    fn free_lines(&mut self) -> Vec<Range<usize>> {
        let mut free = Vec::new();
        self.taken.retain(|_, taken| {
            let is_needed =
                taken.is_attached || matches!(taken.peer, PeerState::Joined | PeerState::Left);
            if !is_needed {
                free.push(taken.lines.clone());
            }
            is_needed
        });
        free
    }

    /// Closes all channels of a consumer that was withdrawn. New ones are refused.
    pub(super) fn withdraw(&mut self) {
        self.spare.clear();
        self.taken.clear();
        self.is_withdrawn = true;
    }
}
