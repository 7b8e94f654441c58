//! The core of the probe: a state machine without threads, clocks and files.
//!
//! Its inputs are commands, completions and notes; its outputs are effects, replies and events. Each source has only
//! one effect under way at a time, and carries out its commands in their order, so the behaviour of a source depends
//! only on that order. Sources do not wait for each other. Every command has the same four steps:
//!
//! 1. effects that can fail add the objects that it needs (a feed, a waker);
//! 2. when all have succeeded, it is committed: subscriptions point to their feeds, and consumers are told;
//! 3. objects that no subscription needs any more are removed: old ones, or after a failure those that step 1 has
//!    added;
//! 4. it is answered.

mod completion;
mod machine;
mod op;
mod source;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weir_ring::Ledger;

pub use words::{
    Command, CommandId, Completion, ConsumerId, Effect, EffectId, Event, FeedId, Note, Output,
    Refused, Reply, SourceId, SubscriptionId, Wanted,
};

use op::Op;
use source::{End, Phase, Source};

/// The state machine of the probe.
#[derive(Debug)]
pub struct Core<W: Wanted, E> {
    last_id: u64,
    sources: BTreeMap<SourceId, Source<W, E>>,
    subscriptions: BTreeMap<SubscriptionId, Subscription<W>>,
    consumers: BTreeSet<ConsumerId>,
    /// The running effects, and the source of each.
    under_way: BTreeMap<EffectId, SourceId>,
    /// Commands that several sources carry out together.
    waits: BTreeMap<CommandId, Wait>,
    outputs: VecDeque<Output<W, E>>,
    is_stopped: bool,
}

/// One subscriber.
#[derive(Debug)]
struct Subscription<W> {
    source: SourceId,
    wants: W,
    /// `None` until the first feed exists, and while the source is missing.
    feed: Option<FeedId>,
    consumers: BTreeSet<ConsumerId>,
}

/// State of a command that waits for several sources.
#[derive(Debug)]
struct Wait {
    left: usize,
    /// The ledgers so far, of a command that reads ledgers.
    ledgers: Option<Vec<(FeedId, Ledger)>>,
}

impl<W: Wanted, E> Default for Core<W, E> {
    fn default() -> Self {
        Core {
            last_id: 0,
            sources: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            consumers: BTreeSet::new(),
            under_way: BTreeMap::new(),
            waits: BTreeMap::new(),
            outputs: VecDeque::new(),
            is_stopped: false,
        }
    }
}

impl<W: Wanted, E> Core<W, E> {
    /// Creates a probe without sources.
    #[must_use]
    pub fn new() -> Core<W, E> {
        Core::default()
    }

    /// Returns the next output, if there is one.
    pub fn output(&mut self) -> Option<Output<W, E>> {
        self.outputs.pop_front()
    }

    /// Returns the feed that a subscription reads now; `None` while its source is missing, and after its end.
    #[must_use]
    pub fn feed_of(&self, subscription: SubscriptionId) -> Option<FeedId> {
        self.subscriptions.get(&subscription)?.feed
    }

    /// Returns the demands of a subscription.
    #[must_use]
    pub fn wants_of(&self, subscription: SubscriptionId) -> Option<&W> {
        Some(&self.subscriptions.get(&subscription)?.wants)
    }

    /// Returns the consumers that are attached to a subscription.
    #[must_use]
    pub fn consumers_of(&self, subscription: SubscriptionId) -> BTreeSet<ConsumerId> {
        let known = self.subscriptions.get(&subscription);
        known.map(|known| known.consumers.clone()).unwrap_or_default()
    }

    /// Returns the sources that are open, are being opened, or are missing and waited for.
    pub fn sources(&self) -> impl Iterator<Item = SourceId> {
        self.sources.keys().copied()
    }

    /// Returns the number of running effects.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Takes a command. Its reply will be among the outputs, now or after some completions.
    pub fn command(&mut self, command: Command<W>) -> CommandId {
        let id = CommandId(self.next());
        if self.is_stopped && !matches!(command, Command::Stop) {
            self.reply(id, Err(Refused::Stopped));
            return id;
        }
        match command {
            Command::Open { wants, follows } => self.open(id, wants, follows),
            Command::Start(source) => self.enqueue(source, Op::Start(id)),
            Command::Close(source) => self.close(id, &[source]),
            Command::Subscribe { source, wants } => self.subscribe(id, source, wants),
            Command::Unsubscribe(subscription) => {
                self.enqueue_of(subscription, Op::Unsubscribe(id, subscription));
            }
            Command::Change(subscription, change) => {
                self.enqueue_of(subscription, Op::Change(id, subscription, change));
            }
            Command::AddConsumer => {
                let consumer = ConsumerId(self.next());
                self.consumers.insert(consumer);
                self.reply(id, Ok(Reply::Added(consumer)));
            }
            Command::RemoveConsumer(consumer) => self.end_consumer(id, consumer, false),
            Command::Withdraw(consumer) => self.end_consumer(id, consumer, true),
            Command::Attach(consumer, subscription) => {
                self.enqueue_of(subscription, Op::Attach(id, consumer, subscription));
            }
            Command::Detach(consumer, subscription) => {
                self.enqueue_of(subscription, Op::Detach(id, consumer, subscription));
            }
            Command::Ledgers(of) => {
                let sources: Vec<SourceId> = of.into_iter().collect();
                self.in_all(id, &sources, Some(Vec::new()), || Op::Ledgers(id));
            }
            Command::Stop => {
                self.is_stopped = true;
                let sources: Vec<SourceId> = self.sources.keys().copied().collect();
                self.close(id, &sources);
            }
        }
        id
    }

    /// Takes the answer to an effect.
    ///
    /// # Panics
    /// If the effect was not requested, or was completed before: that is a bug of the runtime.
    pub fn complete(&mut self, effect: EffectId, completion: Completion<E>) {
        let source = self.under_way.remove(&effect).expect("an effect that is under way");
        self.completed(source, completion);
        self.advance(source);
    }

    /// Takes a note about a source. Notes about sources that have ended have no effect.
    pub fn note(&mut self, id: SourceId, note: Note<E>) {
        let Some(source) = self.sources.get_mut(&id) else { return };
        let is_open = source.phase == Phase::Open;
        let is_opening = source.is_opening();
        let event = match note {
            Note::Appeared => {
                source.may_be_there = true;
                None
            }
            // Reported once the source is open, if it is still true then.
            Note::Down | Note::Up if is_opening => {
                source.is_down = matches!(note, Note::Down);
                None
            }
            // The end of the source was reported already.
            _ if !is_open || source.end.is_some() => None,
            Note::Down if !source.is_down => {
                source.is_down = true;
                Some(Event::Down(id))
            }
            Note::Up if source.is_down => {
                source.is_down = false;
                Some(Event::Up(id))
            }
            Note::Down | Note::Up => None,
            Note::Interface(event) => Some(Event::Interface(id, event)),
            Note::Ended => {
                source.end = Some(End::ForGood);
                Some(Event::Ended(id))
            }
            Note::Failed(error) => {
                source.end = Some(End::ForGood);
                Some(Event::Failed(id, error))
            }
            Note::Vanished(error) if source.follows => {
                source.end = Some(End::Vanished);
                Some(Event::Vanished(id, error))
            }
            Note::Vanished(error) => {
                source.end = Some(End::ForGood);
                Some(Event::Failed(id, error))
            }
        };
        self.outputs.extend(event.map(Output::Event));
        self.advance(id);
    }

    fn next(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn reply(&mut self, command: CommandId, result: Result<Reply, Refused<E>>) {
        self.outputs.push_back(Output::Reply(command, result));
    }

    fn event(&mut self, event: Event<E>) {
        self.outputs.push_back(Output::Event(event));
    }

    fn open(&mut self, command: CommandId, wants: Vec<W>, follows: bool) {
        let source = SourceId(self.next());
        let subscriptions: Vec<SubscriptionId> =
            wants.into_iter().map(|wants| self.add_subscription(source, wants)).collect();
        self.sources.insert(source, Source::new(follows));
        self.enqueue(source, Op::Open(Some((command, subscriptions))));
    }

    fn subscribe(&mut self, command: CommandId, source: SourceId, wants: W) {
        if !self.sources.contains_key(&source) {
            return self.reply(command, Err(Refused::Unknown));
        }
        let subscription = self.add_subscription(source, wants);
        self.enqueue(source, Op::Subscribe(command, subscription));
    }

    fn add_subscription(&mut self, source: SourceId, wants: W) -> SubscriptionId {
        let id = SubscriptionId(self.next());
        let new = Subscription { source, wants, feed: None, consumers: BTreeSet::new() };
        self.subscriptions.insert(id, new);
        id
    }

    fn enqueue(&mut self, id: SourceId, op: Op<W>) {
        match self.sources.get_mut(&id) {
            Some(source) => {
                source.queue.push_back(op);
                self.advance(id);
            }
            None => self.refuse(op, Refused::Unknown),
        }
    }

    fn enqueue_of(&mut self, subscription: SubscriptionId, op: Op<W>) {
        match self.subscriptions.get(&subscription).map(|known| known.source) {
            Some(source) => self.enqueue(source, op),
            None => self.refuse(op, Refused::Unknown),
        }
    }

    /// Makes each of these sources carry out its part of a command.
    fn in_all(
        &mut self,
        command: CommandId,
        sources: &[SourceId],
        ledgers: Option<Vec<(FeedId, Ledger)>>,
        op: impl Fn() -> Op<W>,
    ) {
        // One more than the number of sources, so that the command is not answered before all of them have got their
        // part.
        self.waits.insert(command, Wait { left: sources.len() + 1, ledgers });
        for &source in sources {
            self.enqueue(source, op());
        }
        self.part_done(command, Vec::new());
    }

    /// Counts a source that has carried out its part of a command.
    fn part_done(&mut self, command: CommandId, ledgers: Vec<(FeedId, Ledger)>) {
        let wait = self.waits.get_mut(&command).expect("a command that waits");
        wait.left -= 1;
        if let Some(all) = &mut wait.ledgers {
            all.extend(ledgers);
        }
        if wait.left == 0 {
            let wait = self.waits.remove(&command).expect("it is there");
            self.reply(command, Ok(wait.ledgers.map_or(Reply::Done, Reply::Ledgers)));
        }
    }

    fn close(&mut self, command: CommandId, sources: &[SourceId]) {
        if sources.iter().any(|source| !self.sources.contains_key(source)) {
            return self.reply(command, Err(Refused::Unknown));
        }
        self.waits.insert(command, Wait { left: sources.len() + 1, ledgers: None });
        for id in sources {
            let source = self.sources.get_mut(id).expect("it is there");
            source.end = Some(End::ForGood);
            source.closers.push(command);
            self.advance(*id);
        }
        self.part_done(command, Vec::new());
    }

    fn end_consumer(&mut self, command: CommandId, consumer: ConsumerId, withdraws: bool) {
        if !self.consumers.remove(&consumer) {
            return self.reply(command, Err(Refused::Unknown));
        }
        // All sources: a waiting command may attach the consumer to any of them, and that command then finds no
        // consumer.
        let sources: Vec<SourceId> = self.sources.keys().copied().collect();
        self.in_all(command, &sources, None, || match withdraws {
            true => Op::Withdraw(command, consumer),
            false => Op::Leave(command, consumer),
        });
    }
}
