//! Outputs of the core, compared with the known state.

use weir_probe::core::{Command, Effect, Event, Output, Refused, Reply};
use weir_probe::runtime::updates::LetGo;
use weir_probe::{ConsumerId, FeedId, SourceId, SubscriptionId};

use super::{Fault, Subscription, World};
use crate::broken::{broken, hold};
use crate::meaning::Wanting;
use crate::planted::Planted;
use crate::reader::FeedMessage;

impl World {
    pub(super) fn take_outputs(&mut self) {
        while let Some(output) = self.core.output() {
            match output {
                Output::Effect(id, effect) => {
                    self.check_effect(&effect);
                    if let Effect::OpenSource(source, _) = &effect {
                        self.down.remove(source);
                        self.told_down.remove(source);
                    }
                    hold!(self.under_way.insert(id, effect).is_none(), "{id:?} is new");
                }
                Output::Reply(id, result) => {
                    let Some(command) = self.callers.asked.remove(&id) else {
                        broken(format!("a command is answered once: {id:?}"))
                    };
                    self.replied(command, result);
                }
                Output::Joined(consumer, feed) => self.joined(consumer, feed),
                Output::Left(consumer, feed) => self.left(consumer, feed),
                Output::Event(event) => self.heard(event),
            }
        }
        let (core, own) = (self.core.under_way(), self.under_way.len());
        hold!(core == own, "effects under way: {core}, {own}");
    }

    /// Checks that an effect refers only to existing objects.
    fn check_effect(&self, effect: &Effect<Wanting>) {
        let source = effect.source();
        let is_other = self.under_way.values().any(|other| other.source() == source);
        hold!(!is_other, "a source has one effect at a time: {effect:?}");
        hold!(!self.callers.gone_sources.contains(&source), "{effect:?} of a closed source");
        let is_open = self.open.contains_key(&source);
        hold!(is_open != matches!(effect, Effect::OpenSource(..)), "only what is open: {effect:?}");
        let is_there =
            |feed: &FeedId| self.truths.get(feed).is_some_and(|truth| truth.left_at.is_none());
        let is_good = match effect {
            Effect::OpenSource(_, feeds) => {
                let is_new = |(at, (_, wants)): (usize, &(FeedId, Wanting))| {
                    feeds[..at].iter().all(|(_, other)| other.meaning != wants.meaning)
                };
                !feeds.is_empty() && feeds.iter().enumerate().all(is_new)
            }
            Effect::StartSource(_) => !self.open[&source].is_started,
            Effect::RemoveFeed(_, feed) => {
                is_there(feed) && self.wakers.iter().all(|(_, of)| of != feed)
            }
            Effect::ChangeFeed(_, feed, _) | Effect::ReadLedger(_, feed) => is_there(feed),
            Effect::RenewFeed { old, .. } => is_there(old),
            Effect::AttachWaker(_, feed, consumer) => {
                is_there(feed) && !self.callers.gone_consumers.contains(consumer)
            }
            Effect::DetachWaker(_, feed, consumer) => {
                is_there(feed) && self.wakers.contains(&(*consumer, *feed))
            }
            Effect::AddFeed(_, feed, _) => !self.truths.contains_key(feed),
            Effect::CloseSource(_) => true,
        };
        hold!(is_good, "an effect is of what is there: {effect:?}");
    }

    fn joined(&mut self, consumer: ConsumerId, feed: FeedId) {
        let is_attached = self.wakers.contains(&(consumer, feed));
        hold!(is_attached, "{consumer:?} joins what wakes it: {feed:?}");
        hold!(self.callers.reads.insert((consumer, feed)), "{consumer:?} joins {feed:?} once");
        self.untaken.entry(consumer).or_default().push_back(FeedMessage::Joined(feed));
        let mut gone = self.registry.joined(consumer, feed);
        if self.planted == Some(Planted::JoinedTwice) {
            gone.extend(self.registry.joined(consumer, feed));
        }
        self.let_go(consumer, gone);
    }

    fn left(&mut self, consumer: ConsumerId, feed: FeedId) {
        hold!(
            self.callers.reads.remove(&(consumer, feed)),
            "{consumer:?} leaves what it reads: {feed:?}"
        );
        self.check_handed_over(consumer, feed);
        let until = vec![self.truths[&feed].frames()];
        self.untaken.entry(consumer).or_default().push_back(FeedMessage::Left(feed, until));
        if self.planted != Some(Planted::LeftForgotten) {
            let gone = self.registry.left(consumer, feed);
            self.let_go(consumer, gone);
        }
    }

    /// Removes the messages about feeds of earlier lives of a source that a consumer did not take, and that it will
    /// not get any more.
    fn let_go(&mut self, consumer: ConsumerId, gone: Vec<LetGo>) {
        for LetGo { source, feed, frames } in gone {
            let untaken = self.untaken.entry(consumer).or_default();
            hold!(self.truths[&feed].source == source, "{feed:?} is of {source:?}");
            // A consumer that left a feed and joined it again was told so twice. It may have taken that it joined,
            // but not that it left; then it is still told that it left.
            let joined = untaken.iter().position(|told| *told == FeedMessage::Joined(feed));
            let is_left =
                |told: &FeedMessage| matches!(told, FeedMessage::Left(of, _) if *of == feed);
            let left =
                joined.and_then(|joined| Some(joined + untaken.range(joined..).position(is_left)?));
            let Some((joined, left)) = joined.zip(left) else {
                broken(format!("{feed:?} is let go, of which nothing was told: {untaken:?}"))
            };
            let told = untaken.remove(left);
            let wanted = FeedMessage::Left(feed, vec![frames]);
            hold!(told.as_ref() == Some(&wanted), "{feed:?} is let go: {told:?}, {wanted:?}");
            untaken.remove(joined);
        }
    }

    /// Checks that a consumer that moves to another feed misses nothing: the new feed must have joined before the old
    /// one left.
    fn check_handed_over(&self, consumer: ConsumerId, old: FeedId) {
        let left = &self.truths[&old];
        let Some(source) = self.open.get(&left.source) else { return };
        for (subscription, new) in self.callers.moved.get(&old).into_iter().flatten() {
            let known = self.callers.subscriptions.get(subscription);
            let is_reader = known.is_some_and(|known| known.consumers.contains(&consumer));
            if is_reader && self.callers.reads.contains(&(consumer, *new)) {
                let is_whole = self.truths[new].joined_at <= left.left_at.unwrap_or(source.offered);
                hold!(is_whole, "{consumer:?} misses nothing between {old:?} and {new:?}");
            }
        }
    }

    fn replied(&mut self, command: Command<Wanting>, result: Result<Reply, Refused<Fault>>) {
        let callers = &mut self.callers;
        match (command, result) {
            (Command::Open { wants, follows }, Ok(Reply::Opened(source, own))) => {
                self.opened(source, wants, follows, own);
            }
            (Command::Subscribe { source, wants }, Ok(Reply::Subscribed(id))) => {
                callers.subscriptions.insert(id, Subscription::new(source, wants));
            }
            (Command::AddConsumer, Ok(Reply::Added(consumer))) => {
                callers.consumers.insert(consumer);
                self.consumer_added(consumer);
            }
            (Command::Change(id, change), Ok(Reply::Done)) => {
                if let Some(known) = callers.subscriptions.get_mut(&id) {
                    known.wants = weir_probe::core::Wanted::with(&known.wants, &change);
                }
            }
            (Command::Attach(consumer, id), Ok(Reply::Done)) => {
                if let Some(known) = callers.subscriptions.get_mut(&id) {
                    known.consumers.insert(consumer);
                }
            }
            (Command::Detach(consumer, id), Ok(Reply::Done)) => {
                if let Some(known) = callers.subscriptions.get_mut(&id) {
                    known.consumers.remove(&consumer);
                }
            }
            (Command::RemoveConsumer(consumer), Ok(Reply::Done)) => self.consumer_gone(consumer),
            (Command::Withdraw(consumer), Ok(Reply::Done)) => {
                for feed in callers.seen.remove(&consumer).unwrap_or_default() {
                    let has_left = self.truths[&feed].left_at.is_some();
                    hold!(has_left, "who is withdrawn sees nothing more: {consumer:?}, {feed:?}");
                }
                self.consumer_gone(consumer);
            }
            (Command::Close(source), Ok(Reply::Done)) => {
                hold!(!self.open.contains_key(&source), "{source:?} is closed, and open");
            }
            (Command::Ledgers(_), Ok(Reply::Ledgers(ledgers))) => {
                let closes = ledgers.iter().all(|(_, ledger)| ledger.closes());
                hold!(closes, "ledgers close: {ledgers:?}");
            }
            (_, Ok(_) | Err(_)) => {}
        }
    }

    fn consumer_gone(&mut self, consumer: ConsumerId) {
        self.callers.gone_consumers.insert(consumer);
        self.registry.remove_member(consumer);
        self.untaken.remove(&consumer);
    }

    fn opened(
        &mut self,
        source: SourceId,
        wants: Vec<Wanting>,
        follows: bool,
        own: Vec<SubscriptionId>,
    ) {
        if self.callers.gone_sources.contains(&source) {
            return;
        }
        self.callers.sources.insert(source);
        if follows {
            self.callers.follows.insert(source);
        }
        for (id, wants) in own.into_iter().zip(wants) {
            self.callers.subscriptions.insert(id, Subscription::new(source, wants));
        }
    }

    fn heard(&mut self, event: Event<Fault>) {
        let callers = &mut self.callers;
        match event {
            Event::Closed(source) => {
                hold!(!self.open.contains_key(&source), "{source:?} is closed, and open");
                self.registry.closed(source);
                callers.sources.remove(&source);
                callers.gone_sources.insert(source);
                callers.subscriptions.retain(|_, known| known.source != source);
            }
            Event::FeedClosed(_, feed, ledger) => {
                self.registry.forget_feed(feed);
                hold!(self.closed.insert(feed), "the ledger of {feed:?} is told once");
                let truth = &self.truths[&feed];
                hold!(truth.left_at.is_some(), "{feed:?} is told to be closed, and is there");
                ledger.iter().for_each(|ledger| truth.check(ledger));
            }
            Event::Reads(subscription, feed) => {
                let is_there = self.truths.contains_key(&feed) && !self.closed.contains(&feed);
                hold!(is_there, "{subscription:?} reads {feed:?}, which is there");
                if let Some(old) = callers.feed_of.insert(subscription, feed) {
                    callers.moved.entry(old).or_default().insert((subscription, feed));
                }
            }
            Event::FeedLost(_, lost, _) => {
                callers.subscriptions.retain(|id, _| !lost.contains(id));
            }
            Event::NotAttached(_, consumer, feed, _) => {
                let is_attached = self.wakers.contains(&(consumer, feed));
                hold!(!is_attached, "{consumer:?} is attached to {feed:?}, and is not");
                self.refused.insert((consumer, feed));
            }
            Event::Down(source) => hold!(self.told_down.insert(source), "{source:?} is down once"),
            Event::Up(source) => hold!(self.told_down.remove(&source), "{source:?} is up once"),
            Event::Vanished(source, _) | Event::Missing(source, _) | Event::CameBack(source) => {
                // `Missing` comes before the reply from which the caller learns that the source is followed.
                let is_new = !callers.sources.contains(&source);
                hold!(is_new || callers.follows.contains(&source), "{source:?} is followed");
            }
            _ => {}
        }
    }
}

impl Subscription {
    fn new(source: SourceId, wants: Wanting) -> Subscription {
        Subscription { source, wants, consumers: Default::default() }
    }
}
