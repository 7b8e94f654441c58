//! The channels that wake a consumer, one for each feed that it reads: made here, or by the process that it is.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use weir_capture::CaptureError;
use weir_ring::wake::{Sleeper, Waker};

use crate::core::FeedId;
use crate::limits::REMOTE_CHANNELS_MAX;

/// How a consumer is woken.
pub enum Channels {
    /// It sleeps in the probe's own process, and channels are made as feeds are attached.
    Made {
        /// The sleeper.
        sleeper: Arc<Sleeper>,
        /// The probe's own channel: wakes the consumer when there are updates for it.
        probe_waker: Waker,
    },
    /// It is another process, which makes them.
    Given(GivenChannels),
}

/// Channels that another process has made and handed over.
pub struct GivenChannels {
    /// Those of the wake page that are its own.
    lines: Range<usize>,
    /// Those that no feed has taken yet, by their numbers.
    spare: VecDeque<(usize, Waker)>,
    /// Those that one has, or had: by their numbers.
    taken: BTreeMap<usize, TakenChannel>,
    given_count: usize,
    is_withdrawn: bool,
}

/// A channel that a feed has taken, and the lines of the wake page that go with it. Both stay until the feed's owner
/// has released them *and* the other process knows that it has left the feed: it sleeps on those lines, and would
/// take a channel that hangs up for a dead writer.
struct TakenChannel {
    /// Keeps it from hanging up.
    _waker: Waker,
    feed: FeedId,
    lines: Range<usize>,
    /// The feed's owner wakes by it.
    is_attached: bool,
    peer: PeerState,
}

/// Knowledge of the other process about the feed that has a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerState {
    Nothing,
    Joined,
    Left,
    /// It has released it.
    LetGo,
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

    /// Those of a consumer in another process, which has these lines of its wake page for them.
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

    /// Number of lines of the consumer's wake page for its feeds: the most rings that it can read at a time.
    pub(super) fn lines(&self) -> Range<usize> {
        match self {
            Channels::Made { probe_waker, .. } => 0..probe_waker.lines(),
            Channels::Given(given) => given.lines.clone(),
        }
    }

    /// A channel for a feed that has these lines, and its number if it was given.
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

    /// Whether writers can wait for the consumer: not if it is another process, which could hold them up.
    pub(super) fn may_hold_up(&self) -> bool {
        matches!(self, Channels::Made { .. })
    }

    /// The consumer is to look at its messages.
    pub(super) fn wake(&self) {
        // A thread that carries messages to another process waits on the updates themselves.
        if let Channels::Made { probe_waker, .. } = self {
            probe_waker.wake();
        }
    }
}

impl GivenChannels {
    /// One more; gives its number.
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

    /// The other process is told that it reads the feed which has this channel.
    pub(super) fn joined(&mut self, number: usize) {
        if let Some(taken) = self.taken.get_mut(&number) {
            taken.peer = PeerState::Joined;
        }
    }

    /// The process is told that it has left this feed.
    pub(super) fn left(&mut self, feed: FeedId) {
        let of = |taken: &&mut TakenChannel| taken.feed == feed && taken.peer == PeerState::Joined;
        self.taken.values_mut().filter(of).for_each(|taken| taken.peer = PeerState::Left);
    }

    /// It is told neither: gives the lines that are free now.
    pub(super) fn not_told(&mut self, feed: FeedId) -> Vec<Range<usize>> {
        let of = |taken: &&mut TakenChannel| taken.feed == feed && taken.peer == PeerState::Left;
        self.taken.values_mut().filter(of).for_each(|taken| taken.peer = PeerState::LetGo);
        self.free_lines()
    }

    /// The process does not sleep on the lines of this channel any more. Only for a feed that it was told to have left.
    pub(super) fn let_go(&mut self, number: usize) -> Vec<Range<usize>> {
        if let Some(taken) =
            self.taken.get_mut(&number).filter(|taken| taken.peer == PeerState::Left)
        {
            taken.peer = PeerState::LetGo;
        }
        self.free_lines()
    }

    /// The feed's owner does not wake by this channel any more.
    pub(super) fn detached(&mut self, number: usize) -> Vec<Range<usize>> {
        if let Some(taken) = self.taken.get_mut(&number) {
            taken.is_attached = false;
        }
        self.free_lines()
    }

    /// Lets go of the channels that nobody has any more, and gives their lines. One that the other process was never
    /// told of is lost to it, too: the owner may have asked it for more than the next one would.
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

    /// The consumer was withdrawn: all of its channels are closed, and new ones are refused.
    pub(super) fn withdraw(&mut self) {
        self.spare.clear();
        self.taken.clear();
        self.is_withdrawn = true;
    }
}
