//! Results of a run: its consumers, its feeds and its sources.

use weir_capture::Info;
use weir_consumer::ConsumerError;
use weir_consumer::thread::Finished;
use weir_probe::{ConsumerId, SourceId};
use weir_ring::Ledger;

use super::{Run, statistics};
use crate::consumers::RunConsumer;
use crate::control::Control;
use crate::journal::{Fate, Journal, NotJoined};
use crate::run_result::{ConsumerResult, FeedResult, SourceResult};
use crate::sources::{OpenSource, Subscribed};

impl Run<'_> {
    /// Lets out the rest of an output, and draws the consumer's account, which is complete only then.
    pub(super) fn conclude(
        &self,
        name: &'static str,
        id: ConsumerId,
        finished: Finished<dyn RunConsumer>,
        feeds: &[FeedResult],
    ) -> ConsumerResult {
        let Finished { mut consumer, mut failure, limited, .. } = finished;
        if let None | Some(ConsumerError::Complete(_)) = failure {
            let times = (self.start_ns, statistics::now_ns());
            let all = statistics::of(feeds, consumer.rings(), consumer.delivered().frames, times);
            failure = consumer.finish(&all).err().or(failure);
        } else {
            consumer.end();
        }
        let mut result = ConsumerResult {
            name,
            delivered: consumer.delivered(),
            by_interface: consumer.by_interface(),
            interfaces: (0..feeds.len())
                .map(|output| consumer.rings().interfaces(output))
                .collect(),
            failure,
            latency: consumer.latency(),
            netdev: consumer.netdev(),
            flows: consumer.flows(),
            recorder: consumer.recorder(),
            ..Default::default()
        };
        let NotJoined { refused, left, let_go } = self.journal.not_joined(id);
        result.account(consumer.kept(), consumer.rings().unread() + left, limited);
        result.ring_drops += refused;
        for (subscription, frames) in let_go {
            let of = feeds.iter().find(|feed| feed.asked.subscription == subscription);
            result.let_go(of.map(|feed| feed.asked.output), frames);
        }
        result
    }

    /// Results of the feeds, with the filters that are in force.
    pub(super) fn feeds(&self) -> Vec<FeedResult> {
        let locations = self.subscriptions.locations();
        let result = |(asked, location): (&Subscribed, _)| FeedResult {
            ledger: self.journal.ledger(asked.subscription),
            asked: asked.clone(),
            location,
            interfaces: self.journal.interfaces(asked.subscription),
        };
        let mut feeds: Vec<_> =
            self.subscriptions.feeds.iter().zip(locations).map(result).collect();
        let in_force = self.control.iter().flat_map(Control::in_force);
        for (feed, now) in feeds.iter_mut().zip(in_force) {
            feed.asked.takes.filter = now.filter;
            feed.asked.changes = now.changes;
        }
        feeds
    }

    /// Results of the sources.
    pub(super) fn sources(
        &self,
        feeds: &[FeedResult],
        fate: fn(&Journal, SourceId) -> Fate,
    ) -> Vec<SourceResult> {
        let result = |(number, source): (usize, &OpenSource)| {
            let unknown = || Info { source: source.name.clone(), ..Info::default() };
            let own = feeds
                .iter()
                .enumerate()
                .filter(|(at, feed)| feed.asked.source == number && feed.asked.output == *at);
            let mut ledger = Ledger::default();
            own.clone().for_each(|(_, feed)| ledger.add(&feed.ledger));
            // Of the source, and told to each of them.
            ledger.missed_before = own.filter_map(|(_, feed)| feed.ledger.missed_before).max();
            let fate = fate(&self.journal, source.id);
            SourceResult {
                info: self.probe.info_of(source.id).unwrap_or_else(unknown),
                ledger,
                lives: fate.lives,
                downs: fate.downs,
                error: fate.error,
            }
        };
        self.subscriptions.sources.iter().enumerate().map(result).collect()
    }
}
