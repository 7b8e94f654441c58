//! The words of the core: ids, commands, effects and events.

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
            /// The number, for logs and for messages between processes.
            #[must_use]
            pub fn number(self) -> u64 {
                self.0
            }
        }
    };
}

id! {
    /// A source. Never reused.
    SourceId
}
id! {
    /// A feed: one set of rings. Never reused; a subscriber that moves to fresh rings gets another one.
    FeedId
}
id! {
    /// One subscriber's claim to a feed: stays the same when it moves to another feed. Never reused.
    SubscriptionId
}
id! {
    /// A consumer: one waker, any number of subscriptions. Never reused.
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
    /// A change while it runs.
    type Change: Clone + Debug;

    /// Whether both select exactly the same frames, with the same snaplen: then one feed serves both.
    fn is_like(&self, other: &Self) -> bool;

    /// The subscriber's demands after this change.
    #[must_use]
    fn with(&self, change: &Self::Change) -> Self;
}

/// A command.
#[derive(Clone, Debug)]
pub enum Command<W: Wanted> {
    /// Opens a source with its first feeds. It offers nothing before [`Start`](Command::Start).
    Open {
        /// The demands of its first subscribers; at least one.
        wants: Vec<W>,
        /// Waits for an interface that is missing or vanishes.
        follows: bool,
    },
    /// Lets a source offer frames.
    Start(SourceId),
    /// Ends a source and its subscriptions.
    Close(SourceId),
    /// Adds a subscriber.
    Subscribe {
        /// Of this source.
        source: SourceId,
        /// Its wishes.
        wants: W,
    },
    /// Ends a subscription. With the last one, its feed is removed.
    Unsubscribe(SubscriptionId),
    /// Changes the wishes of a subscription. A feed that others read too stays as it is: this subscriber gets one
    /// of its own, unless it takes the same as before.
    Change(SubscriptionId, W::Change),
    /// Adds a consumer.
    AddConsumer,
    /// Ends a consumer.
    RemoveConsumer(ConsumerId),
    /// Lets a consumer read a subscription.
    Attach(ConsumerId, SubscriptionId),
    /// Ends an `Attach`.
    Detach(ConsumerId, SubscriptionId),
    /// Ends a consumer that must not see another frame, though it keeps its mappings: the other readers of its feeds
    /// move to fresh rings, and nothing is written into the old ones any more.
    Withdraw(ConsumerId),
    /// Reads the ledgers of the feeds of these sources. Sources that have ended have none.
    Ledgers(BTreeSet<SourceId>),
    /// Closes all sources. Afterwards only this command is accepted.
    Stop,
}

/// The result of a command.
#[derive(Debug, PartialEq)]
pub enum Reply {
    /// It is done.
    Done,
    /// The source is open, or waited for.
    Opened(SourceId, Vec<SubscriptionId>),
    /// The subscription is in force.
    Subscribed(SubscriptionId),
    /// The consumer may be attached.
    Added(ConsumerId),
    /// The ledgers of the present feeds, without those that could not be read.
    Ledgers(Vec<(FeedId, Ledger)>),
}

/// Why a command was not carried out.
#[derive(Debug, PartialEq)]
pub enum Refused<E> {
    /// The source, subscription or consumer does not exist, or has ended.
    Unknown,
    /// The source ended before.
    Ended,
    /// The probe has been stopped.
    Stopped,
    /// An effect failed; everything is as it was before.
    Failed(E),
}

/// Something for the runtime to do. Each is answered once, by [`Core::complete`](super::Core::complete); a source has
/// one at a time.
#[derive(Clone, Debug)]
pub enum Effect<W: Wanted> {
    /// Open a source with these feeds, at least one.
    OpenSource(SourceId, Vec<(FeedId, W)>),
    /// Let it offer frames.
    StartSource(SourceId),
    /// Stop and drop it; answered with the ledgers of all its feeds.
    CloseSource(SourceId),
    /// Add a feed to an open source.
    AddFeed(SourceId, FeedId, W),
    /// Remove one; answered with its ledger.
    RemoveFeed(SourceId, FeedId),
    /// Change a feed in place. `W`: what it selects after the change.
    ChangeFeed(SourceId, FeedId, W::Change),
    /// Replace the rings of `old` by fresh ones, from one frame to the next; answered with the ledger of `old`.
    RenewFeed {
        /// Of this source.
        source: SourceId,
        /// Gets no more frames.
        old: FeedId,
        /// Gets the frames that `old` would have got.
        new: FeedId,
        /// Its wishes.
        wants: W,
    },
    /// Make a feed wake a consumer.
    AttachWaker(SourceId, FeedId, ConsumerId),
    /// End that.
    DetachWaker(SourceId, FeedId, ConsumerId),
    /// Read a feed's ledger so far.
    ReadLedger(SourceId, FeedId),
}

impl<W: Wanted> Effect<W> {
    /// The source that it concerns.
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
    /// It is done.
    Done,
    /// It is done, and these feeds had or have these ledgers.
    Ledgers(Vec<(FeedId, Ledger)>),
    /// Of `CloseSource`: it is closed, its feeds had these ledgers, and this went wrong on the way.
    Closed(Vec<(FeedId, Ledger)>, Option<E>),
    /// It failed, and nothing has changed; of `RemoveFeed`, `DetachWaker` and `CloseSource`: it is gone nonetheless.
    Failed(E),
    /// Of `OpenSource` and `StartSource`: the interface is not there, or down.
    Missing(E),
}

/// Something that happened to a source without a command.
#[derive(Debug)]
pub enum Note<E> {
    /// It has ended: a file was read, a count was reached.
    Ended,
    /// It cannot go on.
    Failed(E),
    /// Its interface is gone.
    Vanished(E),
    /// An interface with its name has appeared.
    Appeared,
    /// Its interface went down: nothing is offered until it is up.
    Down,
    /// It is up again.
    Up,
    /// One of its interfaces joined or left, went down or came up.
    Interface(SourceEvent),
}

/// Messages to the runtime.
#[derive(Debug)]
pub enum Output<W: Wanted, E> {
    /// An effect to carry out.
    Effect(EffectId, Effect<W>),
    /// The result of a command.
    Reply(CommandId, Result<Reply, Refused<E>>),
    /// A consumer reads this feed's rings from here on, from their first frame.
    Joined(ConsumerId, FeedId),
    /// A consumer does not read this feed any more once it has read the frames that are in its
    /// rings now.
    Left(ConsumerId, FeedId),
    /// Something happened.
    Event(Event<E>),
}

/// An event for the listener.
#[derive(Debug)]
pub enum Event<E> {
    /// A source is open.
    Opened(SourceId),
    /// A followed source is missing; it is waited for.
    Missing(SourceId, E),
    /// A source has ended; its ledgers follow.
    Ended(SourceId),
    /// A source failed; its ledgers follow.
    Failed(SourceId, E),
    /// A source that is followed vanished; its ledgers follow, and it is waited for.
    Vanished(SourceId, E),
    /// A source that was waited for is open again, and started if it was started before.
    CameBack(SourceId),
    /// Its interface went down.
    Down(SourceId),
    /// It is up again.
    Up(SourceId),
    /// One of the interfaces of a source by pattern joined or left, went down or came up.
    Interface(SourceId, SourceEvent),
    /// The shares of the interfaces in the ledger of a feed of such a source; that ledger follows.
    Interfaces(SourceId, FeedId, Vec<InterfaceLedger>),
    /// A source is closed permanently.
    Closed(SourceId),
    /// A subscription reads this feed from now on; its consumers are told later.
    Reads(SubscriptionId, FeedId),
    /// A feed of this source is closed, and this is its ledger; `None` if it could not be read.
    FeedClosed(SourceId, FeedId, Option<Ledger>),
    /// One reader of a feed must not see it any more, but fresh rings for the others could not be made: these
    /// subscriptions have ended.
    FeedLost(FeedId, Vec<SubscriptionId>, E),
    /// A consumer could not be attached to a feed that this source came back with, and does not read it. When the
    /// source comes back another time, it is attached again.
    NotAttached(SourceId, ConsumerId, FeedId, E),
    /// A consumer stands still while a source that is followed comes and goes: it has not taken this feed, and is not
    /// told of it any more, so that the memory of its rings is free. So many frames were in them.
    LetGo(SourceId, ConsumerId, FeedId, u64),
    /// Links are not watched where the interface of this source is, and that is tried again: until then it is not told
    /// whether the interface goes down or comes back.
    NotWatched(SourceId, E),
    /// An effect failed that cannot be undone.
    Trouble(SourceId, E),
}
