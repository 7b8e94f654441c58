//! The progress of a source: it carries out one command at a time, and one effect at a time.

use std::collections::BTreeSet;

use super::op::{Op, Running};
use super::source::{End, Phase, Source, UnderWay};
use super::words::{
    ConsumerId, Effect, EffectId, Event, FeedId, Output, Refused, SourceId, SubscriptionId, Wanted,
};
use super::{Core, Subscription};

impl<W: Wanted, E> Core<W, E> {
    /// Goes on with a source until an effect is running or nothing is left to do.
    pub(super) fn advance(&mut self, id: SourceId) {
        while let Some(source) = self.sources.get_mut(&id) {
            if source.under_way.is_some() {
                return;
            }
            if let Some(end) = source.end {
                self.end(id, end);
            } else if source.running.is_some() {
                self.go_on(id);
            } else if source.phase == Phase::Waiting
                && source.may_be_there
                && self.subscriptions.values().any(|known| known.source == id)
            {
                // A source without subscriptions is not opened: it waits for the next subscription.
                source.may_be_there = false;
                source.queue.push_front(Op::Open(None));
                self.begin(id);
            } else if source.queue.is_empty() {
                return;
            } else {
                self.begin(id);
            }
        }
    }

    /// Begins the oldest command: lists its effects that can fail, in order.
    fn begin(&mut self, id: SourceId) {
        let Core { sources, subscriptions, consumers, last_id, .. } = self;
        let source = sources.get_mut(&id).expect("a source that is there");
        let op = source.queue.pop_front().expect("a command");
        let is_open = source.phase == Phase::Open;
        let mut fresh = || {
            *last_id += 1;
            FeedId(*last_id)
        };
        let mut running: Running<W, E> = Running::new(op.clone());
        let forward = &mut running.forward;
        match &op {
            Op::Open(_) => {
                source.is_down = false;
                let mut feeds: Vec<(FeedId, W)> = Vec::new();
                for (&subscription, known) in subscriptions.iter().filter(|(_, s)| s.source == id) {
                    let like = feeds.iter().find(|(_, wants)| wants.is_like(&known.wants));
                    let feed = like.map_or_else(&mut fresh, |like| like.0);
                    if like.is_none() {
                        feeds.push((feed, known.wants.clone()));
                    }
                    running.feeds.insert(subscription, feed);
                }
                forward.push_back(Effect::OpenSource(id, feeds));
            }
            Op::Start(_) if is_open && !source.is_started => {
                forward.push_back(Effect::StartSource(id));
            }
            Op::Subscribe(_, subscription) if is_open => {
                let known = &subscriptions[subscription];
                let like = source.feeds.iter().find(|(_, wants)| wants.is_like(&known.wants));
                let feed = match (known.feed, like) {
                    // The source has come back since, and has a feed for this subscription.
                    (Some(feed), _) | (None, Some((&feed, _))) => feed,
                    (None, None) => {
                        let feed = fresh();
                        forward.push_back(Effect::AddFeed(id, feed, known.wants.clone()));
                        feed
                    }
                };
                running.feeds.insert(*subscription, feed);
            }
            Op::Unsubscribe(_, subscription) | Op::Detach(_, _, subscription)
                if !subscriptions.contains_key(subscription) =>
            {
                return self.refuse(op, Refused::Unknown);
            }
            Op::Change(_, subscription, change) => {
                let Some(known) = subscriptions.get(subscription) else {
                    return self.refuse(op, Refused::Unknown);
                };
                let Some(feed) = known.feed.filter(|_| is_open) else {
                    source.running = Some(running);
                    return;
                };
                let readers = subscriptions.values().filter(|other| other.feed == Some(feed));
                let changed = known.wants.with(change);
                if readers.count() == 1 {
                    forward.push_back(Effect::ChangeFeed(id, feed, change.clone()));
                } else if !changed.is_like(&known.wants) {
                    let own = fresh();
                    forward.push_back(Effect::AddFeed(id, own, changed));
                    let readers = known.consumers.iter();
                    forward.extend(readers.map(|&reader| Effect::AttachWaker(id, own, reader)));
                    running.feeds.insert(*subscription, own);
                }
            }
            Op::Attach(_, consumer, subscription) => {
                let known = subscriptions.get(subscription);
                let Some(known) = known.filter(|_| consumers.contains(consumer)) else {
                    return self.refuse(op, Refused::Unknown);
                };
                if let Some(feed) = known.feed
                    && !source.wakers.contains(&(*consumer, feed))
                {
                    forward.push_back(Effect::AttachWaker(id, feed, *consumer));
                }
            }
            Op::Withdraw(_, consumer) => {
                let reads = |feed: &FeedId| source.given.contains(&(*consumer, *feed));
                for (&old, wants) in source.feeds.iter().filter(|(feed, _)| reads(feed)) {
                    let new = fresh();
                    let wants = wants.clone();
                    forward.push_back(Effect::RenewFeed { source: id, old, new, wants });
                    let others = source.wakers.iter().filter(|&&(_, feed)| feed == old);
                    let others = others.map(|&(other, _)| other).filter(|other| other != consumer);
                    forward.extend(others.map(|other| Effect::AttachWaker(id, new, other)));
                }
            }
            Op::Ledgers(_) => {
                forward.extend(source.feeds.keys().map(|&feed| Effect::ReadLedger(id, feed)));
            }
            _ => {}
        }
        source.running = Some(running);
    }

    /// Goes on with the running command: its next effect, its commit, its removals, or its answer.
    fn go_on(&mut self, id: SourceId) {
        let source = self.sources.get_mut(&id).expect("a source that is there");
        let running = source.running.as_mut().expect("a command that is carried out");
        if let Some(effect) = running.forward.pop_front() {
            source.under_way = Some(UnderWay::Forward(effect.clone()));
            return self.ask(id, effect);
        }
        if !running.is_decided {
            running.is_decided = true;
            let running = source.running.take().expect("it is there");
            self.decide(id, &running);
            self.source(id).running = Some(running);
            return self.tell(id);
        }
        if let Some(effect) = self.unneeded(id) {
            self.source(id).under_way = Some(UnderWay::Cleanup(effect.clone()));
            return self.ask(id, effect);
        }
        let running = self.source(id).running.take().expect("it is there");
        self.answer(running, id);
    }

    /// Commits a command, or removes what a failed command has recorded.
    fn decide(&mut self, id: SourceId, running: &Running<W, E>) {
        let has_failed = running.failure.is_some();
        let Core { sources, subscriptions, outputs, .. } = self;
        let source = sources.get_mut(&id).expect("a source that is there");
        let is_back = matches!(running.op, Op::Open(None)) && source.phase == Phase::Open;
        if is_back && !has_failed {
            outputs.push_back(Output::Event(Event::CameBack(id)));
        }
        // The interface went down while the source was being opened.
        let is_new = matches!(running.op, Op::Open(_)) && source.phase == Phase::Open;
        if is_new && !has_failed && source.is_down {
            outputs.push_back(Output::Event(Event::Down(id)));
        }
        let mut reads = |subscription: &SubscriptionId, feed: FeedId| {
            outputs.push_back(Output::Event(Event::Reads(*subscription, feed)));
            Some(feed)
        };
        match &running.op {
            Op::Open(_) | Op::Start(_) if has_failed => source.end = Some(End::ForGood),
            Op::Subscribe(_, subscription) if has_failed => {
                subscriptions.remove(subscription);
            }
            _ if has_failed => {}
            Op::Start(_) => source.is_started = true,
            Op::Open(_) | Op::Subscribe(..) => {
                for (subscription, &feed) in &running.feeds {
                    let known = subscriptions.get_mut(subscription).expect("it is there");
                    known.feed = reads(subscription, feed);
                }
            }
            Op::Unsubscribe(_, subscription) => {
                subscriptions.remove(subscription);
            }
            Op::Change(_, subscription, change) => {
                let known = subscriptions.get_mut(subscription).expect("it is there");
                known.wants = known.wants.with(change);
                match (running.feeds.get(subscription), known.feed) {
                    (Some(&own), _) => known.feed = reads(subscription, own),
                    (None, Some(feed)) => {
                        source.feeds.insert(feed, known.wants.clone());
                    }
                    (None, None) => {}
                }
            }
            Op::Attach(_, consumer, subscription) => {
                let known = subscriptions.get_mut(subscription).expect("it is there");
                known.consumers.insert(*consumer);
            }
            Op::Detach(_, consumer, subscription) => {
                let known = subscriptions.get_mut(subscription).expect("it is there");
                known.consumers.remove(consumer);
            }
            Op::Leave(_, consumer) => {
                for known in subscriptions.values_mut().filter(|known| known.source == id) {
                    known.consumers.remove(consumer);
                }
            }
            Op::Withdraw(_, consumer) => {
                let own = subscriptions.iter_mut().filter(|(_, known)| known.source == id);
                for (subscription, known) in own {
                    known.consumers.remove(consumer);
                    if let Some(new) = known.feed.and_then(|old| running.renewed.get(&old)) {
                        known.feed = reads(subscription, *new);
                    }
                }
            }
            Op::Ledgers(_) => {}
        }
    }

    /// Returns the effect that removes a feed or a waker that no subscription needs, if there is one.
    fn unneeded(&self, id: SourceId) -> Option<Effect<W>> {
        let source = &self.sources[&id];
        let needed = self.needed(id);
        let mut wakers = source.wakers.difference(&needed);
        if let Some(&(consumer, feed)) = wakers.next() {
            return Some(Effect::DetachWaker(id, feed, consumer));
        }
        let read: BTreeSet<FeedId> = self.of(id).filter_map(|(_, known)| known.feed).collect();
        let mut feeds = source.feeds.keys().filter(|feed| !read.contains(feed));
        feeds.next().map(|&feed| Effect::RemoveFeed(id, feed))
    }

    /// Returns the feeds that each consumer must read.
    fn needed(&self, id: SourceId) -> BTreeSet<(ConsumerId, FeedId)> {
        let reads = |known: &Subscription<W>| {
            let feed = known.feed;
            let readers: Vec<ConsumerId> =
                known.consumers.intersection(&self.consumers).copied().collect();
            feed.into_iter()
                .flat_map(move |feed| readers.clone().into_iter().map(move |reader| (reader, feed)))
        };
        let refused = &self.sources[&id].refused;
        let all = self.of(id).flat_map(|(_, known)| reads(known));
        all.filter(|reader| !refused.contains(reader)).collect()
    }

    /// Tells consumers about changes of the feeds that they read: first the feeds that they join, then those that they
    /// leave.
    pub(super) fn tell(&mut self, id: SourceId) {
        let needed = self.needed(id);
        let told = std::mem::replace(&mut self.source(id).told, needed.clone());
        let joined = needed.difference(&told).map(|&(reader, feed)| Output::Joined(reader, feed));
        self.outputs.extend(joined);
        let left = told.difference(&needed).map(|&(reader, feed)| Output::Left(reader, feed));
        self.outputs.extend(left);
    }

    /// Ends a source: no further work is begun, and closing the source undoes work that was begun.
    fn end(&mut self, id: SourceId, end: End) {
        let is_open = self.source(id).phase == Phase::Open;
        if let Some(mut running) = self.source(id).running.take() {
            // If all effects of an opening have succeeded, it is committed, although the source is closed at once:
            // consumers must learn of its feeds, or nobody would read their frames.
            let is_done = is_open && running.forward.is_empty();
            let is_short_life = is_done && matches!(running.op, Op::Open(_));
            if (running.failure.is_some() || is_short_life) && !running.is_decided {
                running.is_decided = true;
                self.decide(id, &running);
                self.tell(id);
            }
            match (&running.op, end) {
                // A consumer or feed that must be removed is released only when the source is closed.
                (Op::Leave(..) | Op::Withdraw(..), _) => {
                    self.source(id).queue.push_front(running.op);
                }
                _ if running.is_decided => self.answer(running, id),
                // The source was started, and ended before the start was reported, as a short file does.
                (Op::Start(_), End::ForGood) if running.forward.is_empty() => {
                    self.answer(running, id);
                }
                // The source was open, and is now waited for, as requested.
                (Op::Open(_), End::Vanished) => self.answer(running, id),
                (_, End::Vanished) => self.source(id).queue.push_front(running.op),
                (_, End::ForGood) => self.refuse(running.op, Refused::Ended),
            }
        }
        if end == End::ForGood {
            for op in std::mem::take(&mut self.source(id).queue) {
                match op {
                    Op::Leave(command, _) | Op::Withdraw(command, _) => {
                        self.source(id).closers.push(command);
                    }
                    op => self.refuse(op, Refused::Ended),
                }
            }
        }
        let source = self.source(id);
        if source.phase == Phase::Open {
            source.under_way = Some(UnderWay::Close);
            return self.ask(id, Effect::CloseSource(id));
        }
        self.ended(id, end);
    }

    /// Handles the end of a source: the source is waited for, or removed.
    fn ended(&mut self, id: SourceId, end: End) {
        if end == End::Vanished {
            let source = self.source(id);
            (source.end, source.may_be_there) = (None, true);
            return;
        }
        let source = self.sources.remove(&id).expect("a source that is there");
        self.subscriptions.retain(|_, known| known.source != id);
        self.event(Event::Closed(id));
        for command in source.closers {
            self.part_done(command, Vec::new());
        }
    }

    fn ask(&mut self, id: SourceId, effect: Effect<W>) {
        let effect_id = EffectId(self.next());
        self.under_way.insert(effect_id, id);
        self.outputs.push_back(Output::Effect(effect_id, effect));
    }

    pub(super) fn source(&mut self, id: SourceId) -> &mut Source<W, E> {
        self.sources.get_mut(&id).expect("a source that is there")
    }

    fn of(&self, id: SourceId) -> impl Iterator<Item = (&SubscriptionId, &Subscription<W>)> {
        self.subscriptions.iter().filter(move |(_, known)| known.source == id)
    }
}
