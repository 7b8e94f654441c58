//! A runtime, sources and callers, as numbers.

use std::collections::{BTreeMap, BTreeSet};

use weir_probe::core::{
    Command, CommandId, Completion, ConsumerId, Core, Effect, EffectId, Event, FeedId, Note,
    Output, Refused, Reply, SourceId, SubscriptionId, Wanted,
};
use weir_ring::Ledger;

/// A filter: its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wants(u64);

impl Wanted for Wants {
    type Change = u64;

    fn is_like(&self, other: &Wants) -> bool {
        self == other
    }

    fn with(&self, change: &u64) -> Wants {
        Wants(*change)
    }
}

/// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, of: impl Iterator<Item = T>) -> Option<T> {
        let all: Vec<T> = of.collect();
        (!all.is_empty()).then(|| all[self.below(all.len() as u64) as usize])
    }
}

/// A feed in the world.
#[derive(Debug)]
struct Feed {
    source: SourceId,
    wants: Wants,
    /// Frames that its source had offered when it joined, and when it left.
    joined: u64,
    left: Option<u64>,
}

/// A source in the world: exists while it is open.
#[derive(Debug, Default)]
struct Source {
    is_started: bool,
    offered: u64,
}

/// A subscription as its caller knows it.
#[derive(Debug)]
struct Subscription {
    source: SourceId,
    wants: Wants,
    consumers: BTreeSet<ConsumerId>,
}

pub struct World {
    random: Random,
    /// Nothing fails any more.
    is_calm: bool,
    core: Core<Wants, &'static str>,
    // The runtime.
    open: BTreeMap<SourceId, Source>,
    feeds: BTreeMap<FeedId, Feed>,
    wakers: BTreeSet<(ConsumerId, FeedId)>,
    under_way: BTreeMap<EffectId, Effect<Wants>>,
    /// Who could not be attached to what it is to read.
    refused: BTreeSet<(ConsumerId, FeedId)>,
    /// Sources that went down since their opening began, and those of which that was told.
    down: BTreeSet<SourceId>,
    told_down: BTreeSet<SourceId>,
    /// Feeds whose ledgers were told.
    closed: BTreeSet<FeedId>,
    // The callers.
    asked: BTreeMap<CommandId, Command<Wants>>,
    sources: BTreeSet<SourceId>,
    follows: BTreeSet<SourceId>,
    subscriptions: BTreeMap<SubscriptionId, Subscription>,
    consumers: BTreeSet<ConsumerId>,
    gone_consumers: BTreeSet<ConsumerId>,
    gone_sources: BTreeSet<SourceId>,
    reads: BTreeSet<(ConsumerId, FeedId)>,
    /// The feed of each subscription, and the feeds that subscriptions have moved to from each feed.
    feed_of: BTreeMap<SubscriptionId, FeedId>,
    moved: BTreeMap<FeedId, BTreeSet<(SubscriptionId, FeedId)>>,
    /// Consumers whose right is withdrawn, and the feeds that they have seen.
    seen: BTreeMap<ConsumerId, BTreeSet<FeedId>>,
}

impl World {
    pub fn new(seed: u64) -> World {
        World {
            random: Random(seed),
            is_calm: false,
            core: Core::new(),
            open: BTreeMap::new(),
            feeds: BTreeMap::new(),
            wakers: BTreeSet::new(),
            under_way: BTreeMap::new(),
            refused: BTreeSet::new(),
            down: BTreeSet::new(),
            told_down: BTreeSet::new(),
            closed: BTreeSet::new(),
            asked: BTreeMap::new(),
            sources: BTreeSet::new(),
            follows: BTreeSet::new(),
            subscriptions: BTreeMap::new(),
            consumers: BTreeSet::new(),
            gone_consumers: BTreeSet::new(),
            gone_sources: BTreeSet::new(),
            reads: BTreeSet::new(),
            feed_of: BTreeMap::new(),
            moved: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    /// Something happens: a command, an answer, a note, or some frames.
    pub fn event(&mut self) {
        match self.random.below(10) {
            0..3 => self.give_command(),
            3..8 => self.answer_one(),
            8 => self.note_one(),
            _ => self.offer(),
        }
        if self.random.one_in(20) {
            self.settle();
        }
    }

    /// Ends the run, and holds that what is followed comes back and that nothing is left.
    pub fn finish(mut self) {
        self.settle();
        self.is_calm = true;
        for source in self.sources.clone() {
            self.core.note(source, Note::Appeared);
            self.take_outputs();
        }
        self.settle();
        for source in &self.sources {
            let is_wanted = self.subscriptions.values().any(|known| known.source == *source);
            let is_open = self.open.contains_key(source);
            assert!(is_open || !is_wanted, "{source:?} did not come back");
        }
        self.give(Command::Stop);
        if self.random.one_in(2) {
            self.give(Command::Open { wants: vec![Wants(0)], follows: false });
        }
        while !self.under_way.is_empty() {
            self.answer_one();
        }
        assert!(self.asked.is_empty(), "not answered: {:?}", self.asked);
        assert!(self.open.is_empty(), "still open: {:?}", self.open);
        assert!(self.wakers.is_empty() && self.reads.is_empty(), "{:?}", self.wakers);
        assert_eq!(self.core.sources().count(), 0);
        let all: BTreeSet<FeedId> = self.feeds.keys().copied().collect();
        assert_eq!(self.closed, all, "a ledger of every feed, once");
    }

    fn give(&mut self, command: Command<Wants>) {
        let id = self.core.command(command.clone());
        assert!(self.asked.insert(id, command).is_none());
        self.take_outputs();
    }

    fn give_command(&mut self) {
        let wants = Wants(self.random.below(4));
        let source = self.random.pick(self.sources.iter().copied());
        let subscription = self.random.pick(self.subscriptions.keys().copied());
        let consumer = self.random.pick(self.consumers.iter().copied());
        let command = match (self.random.below(24), source, subscription, consumer) {
            (0..3, ..) if self.sources.len() < 4 => {
                let count = 1 + self.random.below(3);
                let wants = (0..count).map(|_| Wants(self.random.below(4))).collect();
                Command::Open { wants, follows: self.random.one_in(2) }
            }
            (3..5, Some(source), ..) => Command::Start(source),
            (5, Some(source), ..) if self.random.one_in(3) => Command::Close(source),
            (6..10, Some(source), ..) => Command::Subscribe { source, wants },
            (10..12, _, Some(subscription), _) => Command::Unsubscribe(subscription),
            (12..15, _, Some(subscription), _) => Command::Change(subscription, wants.0),
            (15..17, ..) if self.consumers.len() < 6 => Command::AddConsumer,
            (17, _, _, Some(consumer)) => Command::RemoveConsumer(consumer),
            (18, _, _, Some(consumer)) => Command::Withdraw(consumer),
            (19..22, _, Some(subscription), Some(consumer)) => {
                Command::Attach(consumer, subscription)
            }
            (22, _, Some(subscription), Some(consumer)) => Command::Detach(consumer, subscription),
            (23, ..) => Command::Ledgers,
            _ => return,
        };
        // Who ends does not count on it any more, whatever comes of the command.
        if let Command::Unsubscribe(gone) = &command {
            self.subscriptions.remove(gone);
        }
        if let Command::RemoveConsumer(gone) | Command::Withdraw(gone) = &command {
            self.consumers.remove(gone);
        }
        self.give(command);
    }

    fn offer(&mut self) {
        let count = self.random.below(5);
        for source in self.open.values_mut().filter(|source| source.is_started) {
            source.offered += count;
        }
    }

    fn note_one(&mut self) {
        let Some(source) = self.random.pick(self.sources.iter().copied()) else { return };
        let is_open = self.open.contains_key(&source);
        let note = match self.random.below(12) {
            0 if is_open => Note::Ended,
            1 if is_open => Note::Failed("failed"),
            2..5 if is_open => Note::Vanished("vanished"),
            5..7 => Note::Down,
            7..9 => Note::Up,
            _ => Note::Appeared,
        };
        let opens =
            |effect: &Effect<Wants>| matches!(effect, Effect::OpenSource(of, _) if *of == source);
        if is_open || self.under_way.values().any(opens) {
            match note {
                Note::Down => _ = self.down.insert(source),
                Note::Up => _ = self.down.remove(&source),
                _ => {}
            }
        }
        self.core.note(source, note);
        self.take_outputs();
    }

    fn answer_one(&mut self) {
        let Some(id) = self.random.pick(self.under_way.keys().copied()) else { return };
        let effect = self.under_way.remove(&id).expect("it is there");
        let fails = !self.is_calm && self.random.one_in(8);
        let completion = self.carry_out(effect, fails);
        self.core.complete(id, completion);
        self.take_outputs();
    }

    /// What the kernel makes of an effect.
    fn carry_out(&mut self, effect: Effect<Wants>, fails: bool) -> Completion<&'static str> {
        let all_or_nothing = !matches!(
            effect,
            Effect::CloseSource(_) | Effect::RemoveFeed(..) | Effect::DetachWaker(..)
        );
        if fails && all_or_nothing {
            let may_miss = matches!(effect, Effect::OpenSource(..) | Effect::StartSource(_));
            return match may_miss && self.random.one_in(2) {
                true => Completion::Missing("missing"),
                false => Completion::Failed("refused"),
            };
        }
        let offered = self.open.get(&effect.source()).map_or(0, |source| source.offered);
        match effect {
            Effect::OpenSource(id, feeds) => {
                self.open.insert(id, Source::default());
                feeds.into_iter().for_each(|(feed, wants)| self.join(id, feed, wants, 0));
            }
            Effect::StartSource(id) => self.open.get_mut(&id).unwrap().is_started = true,
            Effect::CloseSource(id) => {
                self.open.remove(&id);
                let here = |feed: &Feed| feed.source == id && feed.left.is_none();
                let feeds: Vec<FeedId> =
                    self.feeds.iter().filter(|(_, feed)| here(feed)).map(|(&id, _)| id).collect();
                let ledgers = feeds.iter().map(|&feed| self.leave(feed, offered)).collect();
                return Completion::Closed(ledgers, fails.then_some("not quite"));
            }
            Effect::AddFeed(id, feed, wants) => self.join(id, feed, wants, offered),
            Effect::RemoveFeed(_, feed) => {
                let ledger = self.leave(feed, offered);
                return if fails {
                    Completion::Failed("no ledger")
                } else {
                    Completion::Ledgers(vec![ledger])
                };
            }
            Effect::ChangeFeed(_, feed, change) => {
                self.feeds.get_mut(&feed).unwrap().wants = Wants(change);
            }
            Effect::RenewFeed { source, old, new, wants } => {
                self.join(source, new, wants, offered);
                let refused = self.refused.iter().filter(|(_, feed)| *feed == old);
                let refused: Vec<_> = refused.map(|(consumer, _)| (*consumer, new)).collect();
                self.refused.extend(refused);
                return Completion::Ledgers(vec![self.leave(old, offered)]);
            }
            Effect::AttachWaker(_, feed, consumer) => {
                assert!(self.wakers.insert((consumer, feed)), "attached twice");
                self.refused.remove(&(consumer, feed));
                self.seen.entry(consumer).or_default().insert(feed);
            }
            Effect::DetachWaker(_, feed, consumer) => {
                assert!(self.wakers.remove(&(consumer, feed)), "not attached");
            }
            Effect::ReadLedger(_, feed) => {
                let joined = self.feeds[&feed].joined;
                return Completion::Ledgers(vec![(feed, ledger(offered - joined))]);
            }
        }
        Completion::Done
    }

    fn join(&mut self, source: SourceId, feed: FeedId, wants: Wants, joined: u64) {
        let new = Feed { source, wants, joined, left: None };
        assert!(self.feeds.insert(feed, new).is_none(), "{feed:?} was used before");
    }

    fn leave(&mut self, id: FeedId, offered: u64) -> (FeedId, Ledger) {
        self.wakers.retain(|(_, feed)| *feed != id);
        let feed = self.feeds.get_mut(&id).expect("a feed");
        assert_eq!(feed.left, None, "{id:?} left twice");
        feed.left = Some(offered);
        (id, ledger(offered - feed.joined))
    }

    /// Holds that an effect is of what is there.
    fn check(&self, effect: &Effect<Wants>) {
        let source = effect.source();
        let others = self.under_way.values().filter(|other| other.source() == source);
        assert_eq!(others.count(), 0, "a second effect for {source:?}: {effect:?}");
        assert!(!self.gone_sources.contains(&source), "{effect:?} of a closed source");
        let is_open = self.open.contains_key(&source);
        assert_eq!(is_open, !matches!(effect, Effect::OpenSource(..)), "{effect:?}");
        let is_there = |feed: &FeedId| self.feeds.get(feed).is_some_and(|feed| feed.left.is_none());
        match effect {
            Effect::OpenSource(_, feeds) => {
                assert!(!feeds.is_empty(), "{source:?} is opened for nobody");
                for (at, (_, wants)) in feeds.iter().enumerate() {
                    assert!(feeds[..at].iter().all(|(_, other)| other != wants), "not shared");
                }
            }
            Effect::StartSource(_) => assert!(!self.open[&source].is_started, "started twice"),
            Effect::RemoveFeed(_, feed) => {
                assert!(is_there(feed));
                assert!(self.wakers.iter().all(|(_, of)| of != feed), "removed under a reader");
            }
            Effect::ChangeFeed(_, feed, _) | Effect::ReadLedger(_, feed) => {
                assert!(is_there(feed), "{effect:?}");
            }
            Effect::RenewFeed { old, .. } => assert!(is_there(old)),
            Effect::AttachWaker(_, feed, consumer) => {
                assert!(is_there(feed), "{effect:?}");
                assert!(!self.gone_consumers.contains(consumer), "{effect:?}");
            }
            Effect::DetachWaker(_, feed, consumer) => {
                assert!(is_there(feed) && self.wakers.contains(&(*consumer, *feed)), "{effect:?}");
            }
            Effect::CloseSource(_) | Effect::AddFeed(..) => {}
        }
    }

    fn take_outputs(&mut self) {
        while let Some(output) = self.core.output() {
            match output {
                Output::Effect(id, effect) => {
                    self.check(&effect);
                    if let Effect::OpenSource(source, _) = &effect {
                        self.down.remove(source);
                        self.told_down.remove(source);
                    }
                    assert!(self.under_way.insert(id, effect).is_none());
                }
                Output::Reply(id, result) => {
                    let command = self.asked.remove(&id);
                    self.replied(command, result);
                }
                Output::Joined(consumer, feed) => {
                    assert!(self.wakers.contains(&(consumer, feed)), "joined what does not wake");
                    assert!(self.reads.insert((consumer, feed)), "joined twice");
                }
                Output::Left(consumer, feed) => {
                    assert!(self.reads.remove(&(consumer, feed)), "left what it did not read");
                    self.check_handed_over(consumer, feed);
                }
                Output::Event(event) => self.heard(event),
            }
        }
        assert_eq!(self.core.under_way(), self.under_way.len());
    }

    /// A reader that moves to another feed misses nothing: the new one joined before the old one left.
    fn check_handed_over(&self, consumer: ConsumerId, old: FeedId) {
        let left = &self.feeds[&old];
        let Some(source) = self.open.get(&left.source) else { return };
        for (subscription, new) in self.moved.get(&old).into_iter().flatten() {
            let known = self.subscriptions.get(subscription);
            let is_reader = known.is_some_and(|known| known.consumers.contains(&consumer));
            if is_reader && self.reads.contains(&(consumer, *new)) {
                assert!(self.feeds[new].joined <= left.left.unwrap_or(source.offered));
            }
        }
    }

    fn replied(&mut self, command: Option<Command<Wants>>, result: Result<Reply, Refused<&str>>) {
        let command = command.expect("a command that was given, answered once");
        match (command, result) {
            (Command::Open { wants, follows }, Ok(Reply::Opened(source, own))) => {
                self.opened(source, wants, follows, own);
            }
            (Command::Subscribe { source, wants }, Ok(Reply::Subscribed(id))) => {
                let new = Subscription { source, wants, consumers: BTreeSet::new() };
                self.subscriptions.insert(id, new);
            }
            (Command::AddConsumer, Ok(Reply::Added(consumer))) => {
                self.consumers.insert(consumer);
            }
            (Command::Change(id, change), Ok(Reply::Done)) => {
                if let Some(known) = self.subscriptions.get_mut(&id) {
                    known.wants = Wants(change);
                }
            }
            (Command::Attach(consumer, id), Ok(Reply::Done)) => {
                if let Some(known) = self.subscriptions.get_mut(&id) {
                    known.consumers.insert(consumer);
                }
            }
            (Command::Detach(consumer, id), Ok(Reply::Done)) => {
                if let Some(known) = self.subscriptions.get_mut(&id) {
                    known.consumers.remove(&consumer);
                }
            }
            (Command::RemoveConsumer(consumer), Ok(Reply::Done)) => {
                self.gone_consumers.insert(consumer);
            }
            (Command::Withdraw(consumer), Ok(Reply::Done)) => {
                self.gone_consumers.insert(consumer);
                for feed in self.seen.remove(&consumer).unwrap_or_default() {
                    assert!(self.feeds[&feed].left.is_some(), "{consumer:?} still sees {feed:?}");
                }
            }
            (Command::Close(source), Ok(Reply::Done)) => {
                assert!(!self.open.contains_key(&source), "closed, and open");
            }
            (Command::Ledgers, Ok(Reply::Ledgers(ledgers))) => {
                assert!(ledgers.iter().all(|(_, ledger)| ledger.closes()));
            }
            (_, Ok(_) | Err(_)) => {}
        }
    }

    fn opened(&mut self, id: SourceId, wants: Vec<Wants>, follows: bool, own: Vec<SubscriptionId>) {
        if self.gone_sources.contains(&id) {
            return;
        }
        self.sources.insert(id);
        if follows {
            self.follows.insert(id);
        }
        for (subscription, wants) in own.into_iter().zip(wants) {
            let new = Subscription { source: id, wants, consumers: BTreeSet::new() };
            self.subscriptions.insert(subscription, new);
        }
    }

    fn heard(&mut self, event: Event<&'static str>) {
        match event {
            Event::Closed(source) => {
                assert!(!self.open.contains_key(&source));
                self.sources.remove(&source);
                self.gone_sources.insert(source);
                self.subscriptions.retain(|_, known| known.source != source);
            }
            Event::FeedClosed(_, feed, ledger) => {
                assert!(self.closed.insert(feed), "{feed:?} closed twice");
                let known = &self.feeds[&feed];
                let offered = known.left.expect("it has left") - known.joined;
                if let Some(ledger) = ledger {
                    assert!(ledger.closes() && ledger.offered == offered);
                }
            }
            Event::Reads(subscription, feed) => {
                assert!(self.feeds.contains_key(&feed) && !self.closed.contains(&feed), "{feed:?}");
                if let Some(old) = self.feed_of.insert(subscription, feed) {
                    self.moved.entry(old).or_default().insert((subscription, feed));
                }
            }
            Event::FeedLost(_, lost, _) => {
                self.subscriptions.retain(|id, _| !lost.contains(id));
            }
            Event::NotAttached(_, consumer, feed, _) => {
                assert!(!self.wakers.contains(&(consumer, feed)));
                self.refused.insert((consumer, feed));
            }
            Event::Down(source) => assert!(self.told_down.insert(source), "down twice"),
            Event::Up(source) => assert!(self.told_down.remove(&source), "up twice"),
            Event::Vanished(source, _) | Event::Missing(source, _) | Event::CameBack(source) => {
                // `Missing` comes before the reply that says that it is followed.
                let is_new = !self.sources.contains(&source);
                assert!(is_new || self.follows.contains(&source), "not followed");
            }
            _ => {}
        }
    }

    /// Answers all that is under way, and holds that the world is what the callers asked for.
    fn settle(&mut self) {
        while !self.under_way.is_empty() {
            self.answer_one();
        }
        assert!(self.asked.is_empty(), "not answered: {:?}", self.asked);
        let mut read: BTreeSet<FeedId> = BTreeSet::new();
        let mut wakers = BTreeSet::new();
        for (&id, known) in &self.subscriptions {
            assert_eq!(self.core.wants_of(id), Some(&known.wants), "{id:?}");
            let feed = self.core.feed_of(id);
            assert_eq!(feed.is_some(), self.open.contains_key(&known.source), "{id:?}: {known:?}");
            let Some(feed) = feed else {
                assert!(self.follows.contains(&known.source));
                continue;
            };
            let found = &self.feeds[&feed];
            assert_eq!((found.source, found.wants), (known.source, known.wants), "{id:?}");
            assert_eq!(found.left, None);
            read.insert(feed);
            let here = known.consumers.iter().filter(|consumer| self.consumers.contains(consumer));
            wakers.extend(here.map(|&consumer| (consumer, feed)));
        }
        let there: BTreeSet<FeedId> =
            self.feeds.iter().filter(|(_, feed)| feed.left.is_none()).map(|(&id, _)| id).collect();
        assert_eq!(there, read, "feeds that there are, feeds that somebody subscribed to");
        for source in self.open.keys() {
            assert_eq!(self.told_down.contains(source), self.down.contains(source), "{source:?}");
        }
        wakers.retain(|reader| !self.refused.contains(reader));
        assert_eq!(self.wakers, wakers);
        assert_eq!(self.reads, wakers);
    }
}

fn ledger(frames: u64) -> Ledger {
    Ledger {
        offered: frames,
        filtered: frames / 2,
        captured: frames - frames / 2,
        ..Ledger::default()
    }
}
