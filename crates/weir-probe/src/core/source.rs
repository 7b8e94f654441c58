//! One source, as the core knows it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::op::{Op, Running};
use super::words::{CommandId, ConsumerId, Effect, FeedId, Wanted};

/// Where a source stands.
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

/// How a source is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    ForGood,
    /// It is waited for afterwards.
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
    /// Is set while it is to end; nothing else is begun then.
    pub(super) end: Option<End>,
    /// Callers that wait for its end.
    pub(super) closers: Vec<CommandId>,
    /// The feeds that there are. Each takes the frames of its subscriptions.
    pub(super) feeds: BTreeMap<FeedId, W>,
    /// Whom they wake.
    pub(super) wakers: BTreeSet<(ConsumerId, FeedId)>,
    /// Consumers that have ever been given a feed's memory.
    pub(super) given: BTreeSet<(ConsumerId, FeedId)>,
    /// Consumers that could not be attached to a feed, and do not read it, though they are to read its
    /// subscription.
    pub(super) refused: BTreeSet<(ConsumerId, FeedId)>,
    /// Feeds that consumers have been told to read.
    pub(super) told: BTreeSet<(ConsumerId, FeedId)>,
    /// Commands that wait, the oldest first.
    pub(super) queue: VecDeque<Op<W>>,
    /// The one that is carried out.
    pub(super) running: Option<Running<W, E>>,
    /// An effect is under way.
    pub(super) under_way: Option<UnderWay<W>>,
}

/// The effect under way.
#[derive(Debug)]
pub(super) enum UnderWay<W: Wanted> {
    /// For a command, before it is committed.
    Forward(Effect<W>),
    /// Removes what nobody needs.
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

    /// Whether it is being opened, which has not been told yet.
    pub(super) fn is_opening(&self) -> bool {
        let running = self.running.as_ref().filter(|running| !running.is_decided);
        running.is_some_and(|running| matches!(running.op, Op::Open(_)))
    }

    /// A feed is gone, and with it whom it woke.
    pub(super) fn forget(&mut self, feed: FeedId) {
        self.feeds.remove(&feed);
        self.wakers.retain(|(_, of)| *of != feed);
        self.given.retain(|(_, of)| *of != feed);
        self.refused.retain(|(_, of)| *of != feed);
    }
}
