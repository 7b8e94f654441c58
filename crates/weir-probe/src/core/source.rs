//! The core's state of one source.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::op::{Op, Running};
use super::words::{CommandId, ConsumerId, Effect, FeedId, Wanted};

/// The phase of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The source was not opened yet.
    New,
    /// The source is open.
    Open,
    /// The interface is missing, or the source has had no subscription since the interface vanished. Commands change
    /// the demands of subscriptions, and have no effect outside of the core.
    Waiting,
}

/// How a source will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    ForGood,
    /// After the end, the source is waited for.
    Vanished,
}

#[derive(Debug)]
pub(super) struct Source<W: Wanted, E> {
    pub(super) phase: Phase,
    pub(super) follows: bool,
    pub(super) is_started: bool,
    pub(super) is_down: bool,
    /// The interface may exist: one with its name has appeared, or it was not looked for since it vanished.
    pub(super) may_be_there: bool,
    /// Set if the source must end: then no other work is begun.
    pub(super) end: Option<End>,
    /// Commands that wait for the end of the source.
    pub(super) closers: Vec<CommandId>,
    /// The current feeds. Each selects the frames of its subscriptions.
    pub(super) feeds: BTreeMap<FeedId, W>,
    /// The consumers that each feed wakes.
    pub(super) wakers: BTreeSet<(ConsumerId, FeedId)>,
    /// Consumers that have at any time got a feed's memory.
    pub(super) given: BTreeSet<(ConsumerId, FeedId)>,
    /// Consumers of a subscription that could not be attached to its feed, so that they do not read it.
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
    /// An effect of a command that is not committed yet.
    Forward(Effect<W>),
    /// Removes a feed or a waker that is not needed.
    Cleanup(Effect<W>),
    /// Closes the source.
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

    /// Tells whether the source is being opened, and that was not reported yet.
    pub(super) fn is_opening(&self) -> bool {
        let running = self.running.as_ref().filter(|running| !running.is_decided);
        running.is_some_and(|running| matches!(running.op, Op::Open(_)))
    }

    /// Removes a feed and its wakers.
    pub(super) fn forget(&mut self, feed: FeedId) {
        self.feeds.remove(&feed);
        self.wakers.retain(|(_, of)| *of != feed);
        self.given.retain(|(_, of)| *of != feed);
        self.refused.retain(|(_, of)| *of != feed);
    }
}
