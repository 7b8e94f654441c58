//! Handles the answers to effects. They change the state of a source, and a failure affects the running command.

use std::collections::{BTreeMap, BTreeSet};

use super::Core;
use super::op::Op;
use super::source::{End, Phase, UnderWay};
use super::words::{
    Completion, ConsumerId, Effect, Event, FeedId, SourceId, SubscriptionId, Wanted,
};

impl<W: Wanted, E> Core<W, E> {
    /// Handles the answer to the running effect of this source.
    pub(super) fn completed(&mut self, id: SourceId, completion: Completion<E>) {
        let source = self.source(id);
        match source.under_way.take().expect("an effect under way") {
            UnderWay::Close => self.closed(id, completion),
            UnderWay::Cleanup(effect) => {
                if let Effect::RemoveFeed(_, feed) = effect {
                    source.forget(feed);
                    let ledger = ledger_of(feed, &completion);
                    self.event(Event::FeedClosed(id, feed, ledger));
                } else if let Effect::DetachWaker(_, feed, consumer) = effect {
                    source.wakers.remove(&(consumer, feed));
                }
                if let Completion::Failed(error) | Completion::Missing(error) = completion {
                    self.event(Event::Trouble(id, error));
                }
            }
            UnderWay::Forward(effect) => match completion {
                Completion::Failed(error) | Completion::Missing(error)
                    if matches!(effect, Effect::RenewFeed { .. } | Effect::AttachWaker(..)) =>
                {
                    self.failed_beside(id, effect, error);
                }
                Completion::Missing(error)
                    if source.follows && matches!(effect, Effect::StartSource(_)) =>
                {
                    // Unless the source has ended already, and that was reported.
                    if source.end.is_none() {
                        source.end = Some(End::Vanished);
                        self.event(Event::Vanished(id, error));
                    }
                }
                Completion::Missing(error)
                    if source.follows && matches!(effect, Effect::OpenSource(..)) =>
                {
                    source.phase = Phase::Waiting;
                    let running = source.running.as_mut().expect("it is there");
                    // The subscriptions stay, without feeds.
                    running.feeds = BTreeMap::new();
                    // If the source was missing already, that is not reported again.
                    if matches!(running.op, Op::Open(Some(_))) {
                        self.event(Event::Missing(id, error));
                    }
                }
                Completion::Failed(error) | Completion::Missing(error) => {
                    let running = source.running.as_mut().expect("it is there");
                    let is_read = matches!(effect, Effect::ReadLedger(..));
                    let came_back = matches!(running.op, Op::Open(None));
                    if is_read {
                        return self.event(Event::Trouble(id, error));
                    }
                    running.forward.clear();
                    if came_back {
                        // No command has requested this effect, so there is no command to answer and no change to
                        // commit.
                        running.is_decided = true;
                        source.end = Some(End::ForGood);
                        return self.event(Event::Failed(id, error));
                    }
                    running.failure = Some(error);
                }
                done => self.succeeded(id, effect, done),
            },
        }
    }

    /// Handles the success of an effect of a command.
    fn succeeded(&mut self, id: SourceId, effect: Effect<W>, completion: Completion<E>) {
        let Core { sources, subscriptions, consumers, .. } = self;
        let source = sources.get_mut(&id).expect("a source that is there");
        let running = source.running.as_mut().expect("a command that is carried out");
        match effect {
            Effect::OpenSource(_, feeds) => {
                source.phase = Phase::Open;
                source.feeds = feeds.into_iter().collect();
                // The source is open, so a note that the interface has appeared is obsolete.
                source.may_be_there = false;
                // Each feed is listed once, even if several of its subscriptions share it.
                let mut readers: BTreeSet<(FeedId, ConsumerId)> = BTreeSet::new();
                for (subscription, &feed) in &running.feeds {
                    let own = subscriptions[subscription].consumers.intersection(consumers);
                    readers.extend(own.map(|&reader| (feed, reader)));
                }
                let attach = |(feed, reader)| Effect::AttachWaker(id, feed, reader);
                running.forward.extend(readers.into_iter().map(attach));
                if source.is_started {
                    running.forward.push_back(Effect::StartSource(id));
                }
                if matches!(running.op, Op::Open(Some(_))) {
                    self.event(Event::Opened(id));
                }
            }
            Effect::AddFeed(_, feed, wants) => {
                source.feeds.insert(feed, wants);
            }
            Effect::AttachWaker(_, feed, consumer) => {
                source.wakers.insert((consumer, feed));
                source.given.insert((consumer, feed));
                source.refused.remove(&(consumer, feed));
            }
            Effect::RenewFeed { old, new, wants, .. } => {
                running.renewed.insert(old, new);
                let refused = source.refused.iter().filter(|(_, feed)| *feed == old);
                let refused: Vec<_> = refused.map(|(consumer, _)| (*consumer, new)).collect();
                source.refused.extend(refused);
                source.forget(old);
                source.feeds.insert(new, wants);
                let ledger = ledger_of(old, &completion);
                self.event(Event::FeedClosed(id, old, ledger));
            }
            Effect::ReadLedger(..) => {
                if let Completion::Ledgers(ledgers) = completion {
                    running.ledgers.extend(ledgers);
                }
            }
            _ => {}
        }
    }

    /// Handles the failure of an effect if the other effects of the same command do not depend on it.
    fn failed_beside(&mut self, id: SourceId, effect: Effect<W>, error: E) {
        let Core { sources, subscriptions, .. } = self;
        let source = sources.get_mut(&id).expect("a source that is there");
        let running = source.running.as_mut().expect("a command that is carried out");
        let was_refused = match (&running.op, &effect) {
            (Op::Change(_, subscription, _), Effect::AttachWaker(_, _, consumer)) => {
                let feed = subscriptions.get(subscription).and_then(|known| known.feed);
                feed.is_some_and(|feed| source.refused.contains(&(*consumer, feed)))
            }
            _ => false,
        };
        match effect {
            // The old rings must not get another frame, so all of their readers lose the feed.
            Effect::RenewFeed { old, new, .. } => {
                let aimed = |effect: &Effect<W>| matches!(effect, Effect::AttachWaker(_, feed, _) if *feed == new);
                running.forward.retain(|effect| !aimed(effect));
                let lost = subscriptions.iter().filter(|(_, known)| known.feed == Some(old));
                let lost: Vec<SubscriptionId> = lost.map(|(&lost, _)| lost).collect();
                lost.iter().for_each(|lost| _ = subscriptions.remove(lost));
                self.event(Event::FeedLost(old, lost, error));
            }
            // The consumer will be attached to the next feed of its subscription.
            Effect::AttachWaker(_, feed, consumer)
                if matches!(running.op, Op::Open(_) | Op::Withdraw(..)) || was_refused =>
            {
                source.refused.insert((consumer, feed));
                self.event(Event::NotAttached(id, consumer, feed, error));
            }
            _ => {
                running.forward.clear();
                running.failure = Some(error);
            }
        }
    }

    /// Handles the closing of a source.
    fn closed(&mut self, id: SourceId, completion: Completion<E>) {
        let source = self.source(id);
        source.phase = Phase::Waiting;
        source.wakers.clear();
        source.given.clear();
        source.refused.clear();
        let feeds = std::mem::take(&mut source.feeds);
        for &feed in feeds.keys() {
            let ledger = ledger_of(feed, &completion);
            self.event(Event::FeedClosed(id, feed, ledger));
        }
        if let Completion::Failed(error) | Completion::Closed(_, Some(error)) = completion {
            self.event(Event::Trouble(id, error));
        }
        for known in self.subscriptions.values_mut().filter(|known| known.source == id) {
            known.feed = None;
        }
        self.tell(id);
    }
}

fn ledger_of<E>(feed: FeedId, completion: &Completion<E>) -> Option<weir_ring::Ledger> {
    let (Completion::Ledgers(ledgers) | Completion::Closed(ledgers, _)) = completion else {
        return None;
    };
    ledgers.iter().find(|(of, _)| *of == feed).map(|(_, ledger)| ledger.clone())
}
