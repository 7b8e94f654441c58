//! Results of the consumers of a run.

use std::sync::Arc;

use weir_consumer::ConsumerError;
use weir_consumer::thread::Finished;
use weir_probe::ConsumerId;

use super::{Run, statistics};
use crate::consumers::RunConsumer;
use crate::control::Control;
use crate::journal::NotJoined;
use crate::run_result::{ConsumerResult, FeedResult};
use crate::sources::InForce;

impl Run<'_> {
    /// Finishes an output, and returns the counts of the consumer, which are complete only after that.
    pub(super) fn conclude(
        &self,
        name: &'static str,
        id: ConsumerId,
        finished: Finished<dyn RunConsumer>,
        feeds: &[FeedResult],
    ) -> ConsumerResult {
        let Finished { mut consumer, mut failure, limited, .. } = finished;
        if let None | Some(ConsumerError::Complete(_)) = failure.as_deref() {
            let times = (self.start_ns, statistics::now_ns());
            let mut taken = consumer.delivered();
            if consumer.recorder().is_some() {
                // The recorder adds the lapped frames of each file itself.
                taken.lapped = 0;
            }
            let all = statistics::of(feeds, consumer.rings(), taken, times);
            failure = consumer.finish(&all).err().map(Arc::new).or(failure);
        } else {
            consumer.end();
        }
        let is_complete = limited || matches!(failure.as_deref(), Some(ConsumerError::Complete(_)));
        let mut result = ConsumerResult {
            name,
            is_complete,
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

    /// Returns the filters in force; empty without a control socket, because the filters cannot change then.
    pub(super) fn in_force(&self) -> Vec<InForce> {
        self.control.as_ref().map(Control::in_force).unwrap_or_default()
    }
}
