//! The vocabulary of the core: ids, commands, effects and events.

use std::collections::BTreeSet;
use std::fmt::Debug;

use weir_capture::{InterfaceLedger, SourceEvent};
use weir_ring::Ledger;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u64);

        impl $name {
            /// Returns the number, for logs and for messages between processes.
            #[must_use]
            pub fn number(self) -> u64 {
                self.0
            }
        }
    };
}

id! {
    /// A source. Ids are never reused.
    SourceId
}
id! {
    /// A feed: one set of rings. Ids are never reused; a subscriber that moves to other rings gets another feed.
    FeedId
}
id! {
    /// A subscription: one subscriber's claim to a feed. The id stays the same when the subscriber moves to another
    /// feed. Ids are never reused.
    SubscriptionId
}
id! {
    /// A consumer. It has one waker and any number of subscriptions. Ids are never reused.
    ConsumerId
}
id! {
    /// A command.
    CommandId
}
id! {
    /// An effect.
    EffectId
}

/// The demands of a subscriber on a source: filter, block list, snaplen, direction, sampling.
pub trait Wanted: Clone + Debug {
    /// A change to the demands of a running subscription.
    type Change: Clone + Debug;

    /// Tells whether both select exactly the same frames, with the same snaplen: then one feed serves both.
    fn is_like(&self, other: &Self) -> bool;

    /// Returns the demands after this change.
    #[must_use]
    fn with(&self, change: &Self::Change) -> Self;
}

/// A command to the core.
#[derive(Clone, Debug)]
pub enum Command<W: Wanted> {
    /// Opens a source with its first feeds. The source offers no frames before [`Start`](Command::Start).
    Open {
        /// The demands of the first subscribers; at least one.
        wants: Vec<W>,
        /// Whether to wait for an interface that is missing or vanishes.
        follows: bool,
    },
    /// Makes a source offer frames.
    Start(SourceId),
    /// Ends a source and its subscriptions.
    Close(SourceId),
    /// Adds a subscriber.
    Subscribe {
        /// The source to which to subscribe.
        source: SourceId,
        /// The demands of the subscriber.
        wants: W,
    },
    /// Ends a subscription. A feed is removed together with its last subscription.
    Unsubscribe(SubscriptionId),
    /// Changes the demands of a subscription. A feed that others also read stays as it is: this subscriber gets a feed
    /// of its own, unless its demands select the same frames as before.
    Change(SubscriptionId, W::Change),
    /// Adds a consumer.
    AddConsumer,
    /// Ends a consumer.
    RemoveConsumer(ConsumerId),
    /// Makes a consumer read a subscription.
    Attach(ConsumerId, SubscriptionId),
    /// Ends the reading that `Attach` has begun.
    Detach(ConsumerId, SubscriptionId),
    /// Ends a consumer that must not see further frames, although it keeps the memory mapped: the other readers of its
    /// feeds move to new rings, and the old rings are not written any more.
    Withdraw(ConsumerId),
    /// Reads the ledgers of the feeds of these sources. Sources that have ended are skipped.
    Ledgers(BTreeSet<SourceId>),
    /// Closes all sources. After that, only this command is accepted.
    Stop,
}

/// The result of a command.
#[derive(Debug, PartialEq)]
pub enum Reply {
    /// The command was carried out.
    Done,
    /// The source is open, or is missing and waited for.
    Opened(SourceId, Vec<SubscriptionId>),
    /// The subscription is in force.
    Subscribed(SubscriptionId),
    /// The consumer may be attached.
    Added(ConsumerId),
    /// The ledgers of the current feeds, without those that could not be read.
    Ledgers(Vec<(FeedId, Ledger)>),
}

/// The reason why a command was not carried out.
#[derive(Debug, PartialEq)]
pub enum Refused<E> {
    /// The source, subscription or consumer does not exist, or has ended.
    Unknown,
    /// The source ended before the command was carried out.
    Ended,
    /// The probe has been stopped.
    Stopped,
    /// An effect failed; the state is as it was before the command.
    Failed(E),
}

/// An action for the runtime. Each effect is answered once, with [`Core::complete`](super::Core::complete). A source
/// has only one effect at a time.
#[derive(Clone, Debug)]
pub enum Effect<W: Wanted> {
    /// Open a source with these feeds, at least one.
    OpenSource(SourceId, Vec<(FeedId, W)>),
    /// Make a source offer frames.
    StartSource(SourceId),
    /// Stop and drop a source. The answer has the ledgers of all its feeds.
    CloseSource(SourceId),
    /// Add a feed to an open source.
    AddFeed(SourceId, FeedId, W),
    /// Remove a feed. The answer has its ledger.
    RemoveFeed(SourceId, FeedId),
    /// Change a feed in place.
    ChangeFeed(SourceId, FeedId, W::Change),
    /// Replace the rings of `old` by new ones, between two frames. The answer has the ledger of `old`.
    RenewFeed {
        /// The source of the feeds.
        source: SourceId,
        /// The feed that gets no more frames.
        old: FeedId,
        /// The feed that gets the frames that `old` would have got.
        new: FeedId,
        /// The demands of the feed.
        wants: W,
    },
    /// Make a feed wake a consumer.
    AttachWaker(SourceId, FeedId, ConsumerId),
    /// Stop a feed from waking a consumer.
    DetachWaker(SourceId, FeedId, ConsumerId),
    /// Read a feed's ledger so far.
    ReadLedger(SourceId, FeedId),
}

impl<W: Wanted> Effect<W> {
    /// Returns the source that the effect concerns.
    #[must_use]
    pub fn source(&self) -> SourceId {
        match *self {
            Effect::OpenSource(source, _)
            | Effect::StartSource(source)
            | Effect::CloseSource(source)
            | Effect::AddFeed(source, ..)
            | Effect::RemoveFeed(source, _)
            | Effect::ChangeFeed(source, ..)
            | Effect::RenewFeed { source, .. }
            | Effect::AttachWaker(source, ..)
            | Effect::DetachWaker(source, ..)
            | Effect::ReadLedger(source, _) => source,
        }
    }
}

/// The answer to an effect.
#[derive(Debug)]
pub enum Completion<E> {
    /// The effect was carried out.
    Done,
    /// The effect was carried out, and these are the ledgers of these feeds.
    Ledgers(Vec<(FeedId, Ledger)>),
    /// For `CloseSource`: the source is closed. The ledgers of its feeds, and an error on the way, if there was one.
    Closed(Vec<(FeedId, Ledger)>, Option<E>),
    /// The effect failed, and nothing has changed. After a failed `RemoveFeed`, `DetachWaker` or `CloseSource`, the
    /// object is gone nevertheless.
    Failed(E),
    /// For `OpenSource` and `StartSource`: the interface is missing or down.
    Missing(E),
}

/// An event of a source that no command has caused.
#[derive(Debug)]
pub enum Note<E> {
    /// The source has ended: a file was read to its end, or a number of frames was reached.
    Ended,
    /// The source cannot go on.
    Failed(E),
    /// The interface of the source is gone.
    Vanished(E),
    /// An interface with the source's name has appeared.
    Appeared,
    /// The interface went down: no frames are offered until it is up.
    Down,
    /// The interface is up again.
    Up,
    /// One of the source's interfaces joined or left, went down or came up.
    Interface(SourceEvent),
}

/// A message of the core to the runtime.
#[derive(Debug)]
pub enum Output<W: Wanted, E> {
    /// An effect to carry out.
    Effect(EffectId, Effect<W>),
    /// The result of a command.
    Reply(CommandId, Result<Reply, Refused<E>>),
    /// A consumer reads this feed's rings from now on, from their first frame.
    Joined(ConsumerId, FeedId),
    /// A consumer stops reading this feed once it has read the frames that are in its rings now.
    Left(ConsumerId, FeedId),
    /// An event for the listener.
    Event(Event<E>),
}

/// An event for the listener.
#[derive(Debug)]
pub enum Event<E> {
    /// A source is open.
    Opened(SourceId),
    /// A followed source is missing, and is waited for.
    Missing(SourceId, E),
    /// A source has ended; its ledgers follow.
    Ended(SourceId),
    /// A source failed; its ledgers follow.
    Failed(SourceId, E),
    /// A followed source vanished. Its ledgers follow, and it is waited for.
    Vanished(SourceId, E),
    /// A source that was waited for is open again. It is started if it was started before.
    CameBack(SourceId),
    /// The source's interface went down.
    Down(SourceId),
    /// The source's interface is up again.
    Up(SourceId),
    /// One of the interfaces of a source with a pattern joined or left, went down or came up.
    Interface(SourceId, SourceEvent),
    /// The share of each interface in the ledger of a feed, for a source with a pattern; that ledger follows.
    Interfaces(SourceId, FeedId, Vec<InterfaceLedger>),
    /// A source is closed permanently.
    Closed(SourceId),
    /// A subscription reads this feed from now on. Its consumers are told later.
    Reads(SubscriptionId, FeedId),
    /// A feed of this source is closed. Its ledger; `None` if it could not be read.
    FeedClosed(SourceId, FeedId, Option<Ledger>),
    /// A reader of a feed must not see it any more, but the new rings for the other readers could not be created: these
    /// subscriptions have ended.
    FeedLost(FeedId, Vec<SubscriptionId>, E),
    /// A consumer could not be attached to a feed of a source that has come back, and does not read it. When the source
    /// comes back the next time, the consumer is attached again.
    NotAttached(SourceId, ConsumerId, FeedId, E),
    /// A consumer is stalled while a followed source vanishes and comes back. The consumer has not begun to read this
    /// feed, and is not told of it any more, so that the memory of its rings is freed. The last field is the number of
    /// frames in the rings.
    LetGo(SourceId, ConsumerId, FeedId, u64),
    /// Interfaces cannot be watched in the network namespace of this source. The probe tries again; until then, it is
    /// not reported whether the interface goes down or comes back.
    NotWatched(SourceId, E),
    /// An effect failed whose failure cannot be undone.
    Trouble(SourceId, E),
}
