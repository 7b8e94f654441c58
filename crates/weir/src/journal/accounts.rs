//! The ledgers of a run's feeds, and the numbers of frames in feeds that a consumer never joined.
//!
//! With `--follow`, a source has new feeds each time it comes back. The ledger of a closed feed is kept only in the
//! sums once each consumer has joined the feed or never will.

use std::collections::{BTreeMap, BTreeSet};

use weir_capture::InterfaceLedger;
use weir_probe::{ConsumerId, FeedId, SubscriptionId};
use weir_ring::Ledger;

/// Ledgers of feeds, and numbers of frames that consumers missed because they did not join a feed.
#[derive(Default)]
pub(super) struct Accounts {
    feeds: BTreeMap<FeedId, Known>,
    /// Sums of the ledgers of closed feeds.
    sums: BTreeMap<SubscriptionId, Ledger>,
    /// Ledgers of the interfaces of sources by pattern.
    interfaces: BTreeMap<SubscriptionId, Vec<InterfaceLedger>>,
    consumers: BTreeMap<ConsumerId, Reader>,
}

/// A feed that is open, or that some consumer may still join.
#[derive(Default)]
struct Known {
    readers: BTreeSet<SubscriptionId>,
    /// The last known ledger of the feed.
    latest: Ledger,
    /// Number of frames that the feed captured, once it is closed.
    captured: Option<u64>,
    refused: BTreeSet<ConsumerId>,
    /// Consumers that have joined the feed, or never will.
    settled: BTreeSet<ConsumerId>,
}

struct Reader {
    name: &'static str,
    has_ended: bool,
    not_joined: NotJoined,
}

/// Numbers of frames in feeds that a consumer did not join.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotJoined {
    /// Frames of feeds to which the consumer could not be attached.
    pub refused: u64,
    /// Frames of feeds that were closed before the consumer joined them.
    pub left: u64,
    /// Frames in feeds of past lives that were dropped because the consumer was too slow, by one of the subscriptions
    /// that read the feed.
    pub let_go: BTreeMap<SubscriptionId, u64>,
}

/// Adds the ledgers of the interfaces of another life to `all`. An interface is identified by name and owner; its
/// number is that of its last life.
fn add(all: &mut Vec<InterfaceLedger>, life: &[InterfaceLedger]) {
    let is_same = |known: &InterfaceLedger, one: &InterfaceLedger| {
        let has_owner = match (&known.owner, &one.owner) {
            (Some(known), Some(one)) => known.is_same(one),
            (known, one) => known == one,
        };
        known.name == one.name && has_owner
    };
    for one in life {
        let Some(known) = all.iter_mut().find(|known| is_same(known, one)) else {
            all.push(one.clone());
            continue;
        };
        known.ledger.add(&one.ledger);
        (known.id, known.is_member) = (one.id, one.is_member);
    }
}

impl Accounts {
    /// Records that a subscription reads this feed from now on.
    pub(super) fn reads(&mut self, subscription: SubscriptionId, feed: FeedId) {
        self.feeds.entry(feed).or_default().readers.insert(subscription);
    }

    /// Records the current ledgers of open feeds.
    pub(super) fn count(&mut self, ledgers: Vec<(FeedId, Ledger)>) {
        for (feed, ledger) in ledgers {
            if let Some(known) = self.feeds.get_mut(&feed).filter(|known| known.captured.is_none())
            {
                known.latest = ledger;
            }
        }
    }

    pub(super) fn interfaces_of(&mut self, feed: FeedId, interfaces: &[InterfaceLedger]) {
        let readers = self.feeds.get(&feed).into_iter().flat_map(|known| &known.readers);
        for reader in readers {
            add(self.interfaces.entry(*reader).or_default(), interfaces);
        }
    }

    /// Records that a feed is closed. If its ledger could not be read (`None`), the last known ledger is used.
    pub(super) fn closed(&mut self, feed: FeedId, ledger: Option<Ledger>) {
        let Some(known) = self.feeds.get_mut(&feed) else { return };
        let ledger = ledger.unwrap_or_else(|| std::mem::take(&mut known.latest));
        for reader in &known.readers {
            self.sums.entry(*reader).or_default().add(&ledger);
        }
        known.captured = Some(ledger.captured);
        for (id, consumer) in &mut self.consumers {
            if known.refused.contains(id) {
                consumer.not_joined.refused += ledger.captured;
                known.settled.insert(*id);
            } else if consumer.has_ended && known.settled.insert(*id) {
                consumer.not_joined.left += ledger.captured;
            }
        }
        self.settle(feed);
    }

    /// Adds a consumer. Called before any feed is closed.
    pub(super) fn add_consumer(&mut self, id: ConsumerId, name: &'static str) {
        let reader = Reader { name, has_ended: false, not_joined: NotJoined::default() };
        self.consumers.insert(id, reader);
    }

    /// Records that a consumer cannot be attached to this feed.
    pub(super) fn refused(&mut self, consumer: ConsumerId, feed: FeedId) {
        self.feeds.entry(feed).or_default().refused.insert(consumer);
    }

    /// Records that a consumer has joined this feed. Returns the subscriptions that read the feed.
    pub(super) fn joined(&mut self, consumer: ConsumerId, feed: FeedId) -> Vec<SubscriptionId> {
        let Some(known) = self.feeds.get_mut(&feed) else { return Vec::new() };
        known.settled.insert(consumer);
        let readers = known.readers.iter().copied().collect();
        self.settle(feed);
        readers
    }

    /// Records that this feed, with this number of frames, was dropped before a slow consumer joined it.
    ///
    /// Returns the consumer's name; `None` if the drop was recorded before.
    pub(super) fn let_go(
        &mut self,
        id: ConsumerId,
        feed: FeedId,
        frames: u64,
    ) -> Option<&'static str> {
        let consumer = self.consumers.get_mut(&id)?;
        let known = self.feeds.get_mut(&feed)?;
        let (name, reader) = (consumer.name, known.readers.first()?);
        if !known.settled.insert(id) {
            return None;
        }
        *consumer.not_joined.let_go.entry(*reader).or_default() += frames;
        self.settle(feed);
        Some(name)
    }

    /// Records that a consumer will join no more feeds.
    pub(super) fn consumer_ended(&mut self, id: ConsumerId) {
        let Some(consumer) = self.consumers.get_mut(&id) else { return };
        consumer.has_ended = true;
        let closed = self.feeds.values_mut().filter_map(|known| Some((known.captured?, known)));
        for (captured, known) in closed {
            if known.settled.insert(id) {
                consumer.not_joined.left += captured;
            }
        }
        let feeds: Vec<FeedId> = self.feeds.keys().copied().collect();
        feeds.into_iter().for_each(|feed| self.settle(feed));
    }

    /// Returns the sum over all feeds that a subscription has read, with the last known counts of open feeds.
    pub(super) fn ledger(&self, subscription: SubscriptionId) -> Ledger {
        let mut sum = self.sums.get(&subscription).cloned().unwrap_or_default();
        let own = self.feeds.values().filter(|known| known.readers.contains(&subscription));
        own.filter(|known| known.captured.is_none()).for_each(|known| sum.add(&known.latest));
        sum
    }

    pub(super) fn interfaces(&self, subscription: SubscriptionId) -> Vec<InterfaceLedger> {
        self.interfaces.get(&subscription).cloned().unwrap_or_default()
    }

    pub(super) fn not_joined(&self, consumer: ConsumerId) -> NotJoined {
        let known = self.consumers.get(&consumer);
        let mut sum = known.map(|known| known.not_joined.clone()).unwrap_or_default();
        let waiting = self.feeds.values().filter(|known| !known.settled.contains(&consumer));
        sum.left += waiting.filter_map(|known| known.captured).sum::<u64>();
        sum
    }

    /// Forgets a closed feed once no consumer can join it any more.
    fn settle(&mut self, feed: FeedId) {
        let Some(known) = self.feeds.get(&feed) else { return };
        let is_settled = self.consumers.keys().all(|consumer| known.settled.contains(consumer));
        if known.captured.is_some() && is_settled {
            self.feeds.remove(&feed);
        }
    }

    /// Returns the number of feeds that are not forgotten.
    #[cfg(test)]
    pub(super) fn feeds(&self) -> usize {
        self.feeds.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_interfaces_are_sums_over_all_lives() {
        let share = |id, name: &str, offered| {
            let ledger = Ledger { offered, ..Ledger::default() };
            InterfaceLedger { id, name: name.to_owned(), is_member: true, ledger, owner: None }
        };
        let mut all = Vec::new();
        add(&mut all, &[share(1, "eth0", 5)]);
        add(&mut all, &[share(1, "eth1", 7), share(2, "eth0", 11)]);
        assert_eq!(all, [share(2, "eth0", 16), share(1, "eth1", 7)]);
    }
}
