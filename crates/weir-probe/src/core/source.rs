//! The core's state of one source.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::op::{Op, Running};
use super::words::{CommandId, ConsumerId, Effect, FeedId, Wanted};

/// The state of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not opened yet.
    New,
    /// Open.
    Open,
    /// Its interface is not there, or nobody is subscribed to it since it vanished: commands change the wishes, and
    /// nothing is done.
    Waiting,
}

/// How a source will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    ForGood,
    /// It will be waited for afterwards.
    Vanished,
}

#[derive(Debug)]
pub(super) struct Source<W: Wanted, E> {
    pub(super) phase: Phase,
    pub(super) follows: bool,
    pub(super) is_started: bool,
    pub(super) is_down: bool,
    /// Its interface may be there: one of its name has appeared, or it has not been looked for since it vanished.
    pub(super) may_be_there: bool,
    /// Set if the source must end; then nothing else is begun.
    pub(super) end: Option<End>,
    /// Callers that wait for its end.
    pub(super) closers: Vec<CommandId>,
    /// The present feeds. Each takes the frames of its subscriptions.
    pub(super) feeds: BTreeMap<FeedId, W>,
    /// The consumers that they wake.
    pub(super) wakers: BTreeSet<(ConsumerId, FeedId)>,
    /// Consumers that have ever got a feed's memory.
    pub(super) given: BTreeSet<(ConsumerId, FeedId)>,
    /// Consumers of a subscription that could not be attached to its feed, and so do not read it.
    pub(super) refused: BTreeSet<(ConsumerId, FeedId)>,
    /// Feeds that consumers have been told to read.
    pub(super) told: BTreeSet<(ConsumerId, FeedId)>,
    /// Waiting commands, the oldest first.
    pub(super) queue: VecDeque<Op<W>>,
    /// The command that is being carried out.
    pub(super) running: Option<Running<W, E>>,
    /// The running effect.
    pub(super) under_way: Option<UnderWay<W>>,
}

/// The purpose of the running effect.
#[derive(Debug)]
pub(super) enum UnderWay<W: Wanted> {
    /// For a command, before it is committed.
    Forward(Effect<W>),
    /// It removes a feed or a waker that is not needed.
    Cleanup(Effect<W>),
    /// It closes the source.
    Close,
}

impl<W: Wanted, E> Source<W, E> {
    pub(super) fn new(follows: bool) -> Source<W, E> {
        Source {
            phase: Phase::New,
            follows,
            is_started: false,
            is_down: false,
            may_be_there: false,
            end: None,
            closers: Vec::new(),
            feeds: BTreeMap::new(),
            wakers: BTreeSet::new(),
            given: BTreeSet::new(),
            refused: BTreeSet::new(),
            told: BTreeSet::new(),
            queue: VecDeque::new(),
            running: None,
            under_way: None,
        }
    }

    /// Whether it is being opened, and that was not reported yet.
    pub(super) fn is_opening(&self) -> bool {
        let running = self.running.as_ref().filter(|running| !running.is_decided);
        running.is_some_and(|running| matches!(running.op, Op::Open(_)))
    }

    /// Removes a feed, and the wakers at it.
    pub(super) fn forget(&mut self, feed: FeedId) {
        self.feeds.remove(&feed);
        self.wakers.retain(|(_, of)| *of != feed);
        self.given.retain(|(_, of)| *of != feed);
        self.refused.retain(|(_, of)| *of != feed);
    }
}
