//! The result of a run: the counts of its frames, and its errors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_capture::{FilterLocation, Info, InterfaceLedger};
use weir_consumer::{ConsumerError, Count, Delivered, Taken};
use weir_ring::Ledger;
use weir_store::recorder::RecorderReport;

use crate::consumers::{LatencyReport, NetdevReport};
use crate::error_words::error_text;
use crate::flows::report::FlowsReport;
use crate::sources::Subscribed;
use crate::units::{bit_rate, packet_rate};

/// The result of a run that has ended, or of a running one so far.
pub struct RunResult {
    pub sources: Vec<SourceResult>,
    /// The requested feeds.
    pub feeds: Vec<FeedResult>,
    /// The main consumer is the first.
    pub consumers: Vec<ConsumerResult>,
    pub duration: Duration,
    /// Current rates, while the run lasts.
    pub rates: Option<Rates>,
}

/// Current rates, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Seconds over which the rates were measured.
    pub over_s: f64,
    /// Offered frames.
    pub offered_pps: f64,
    /// Captured frames.
    pub captured_pps: f64,
    /// Bits of the captured frames, by their length on the wire.
    pub captured_bps: f64,
    /// Frames that were lost on the way into a ring.
    pub dropped_pps: f64,
    /// Frames that reached the main consumer.
    pub delivered_pps: f64,
    /// Frames that were overwritten before the main consumer had read them.
    pub lapped_pps: f64,
}

impl Rates {
    /// Returns the rates as text for people.
    pub fn text(&self) -> String {
        format!(
            "last {:.1} s: {}, {} captured, {} dropped, {} lapped",
            self.over_s,
            packet_rate(self.captured_pps),
            bit_rate(self.captured_bps),
            packet_rate(self.dropped_pps),
            packet_rate(self.lapped_pps)
        )
    }
}

/// Result of a source.
#[derive(Debug, Default)]
pub struct SourceResult {
    /// The last known facts about the source.
    pub info: Info,
    /// Sum over all feeds of the source: a frame that was offered to two feeds counts twice.
    pub ledger: Ledger,
    /// How often the source was opened.
    pub lives: u64,
    /// How often its interface went down.
    pub downs: u64,
    /// The error that ended the source; `None` if it was stopped or had no more frames.
    pub error: Option<String>,
    /// The present state of the source, while the run lasts.
    pub now: Option<SourceNow>,
}

/// Present state of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceNow {
    /// Frames of the source are captured.
    pub is_open: bool,
    /// The source delivers no more frames. The run waits for a source that is neither open nor ended.
    pub has_ended: bool,
}

/// Result of a feed.
#[derive(Clone, Debug)]
pub struct FeedResult {
    /// The request, with the filter that was in force last.
    pub asked: Subscribed,
    /// The sum of the feed's ledgers over all lives of its source.
    pub ledger: Ledger,
    /// The place where the feed's filter ran.
    pub location: FilterLocation,
    /// Ledgers of the single interfaces, if the source is a pattern. They are included in `ledger`.
    pub interfaces: Vec<InterfaceLedger>,
}

/// Result of a consumer that has ended, or of a running one so far.
#[derive(Default)]
pub struct ConsumerResult {
    pub name: &'static str,
    pub delivered: Delivered,
    /// Counts by interface, indexed by the numbers in `interfaces`; empty if the consumer does not count by interface.
    pub by_interface: Vec<Taken>,
    /// The consumer's number of each interface, indexed by feed, then by the number in the feed's rings.
    pub interfaces: Vec<Vec<u32>>,
    /// Frames that were taken from the rings but lost by the output.
    pub store_drops: u64,
    /// Frames that were left in the rings because the rings could not be read any more.
    pub ring_drops: u64,
    /// Frames in the rings that the consumer has not read yet, while the run lasts.
    pub waiting: Option<u64>,
    /// Whether the consumer takes no more frames, while the run lasts.
    pub has_ended: Option<bool>,
    /// Whether the consumer has taken all frames that were requested (`--frames`, or the last of a sequence of files).
    pub is_complete: bool,
    /// The error that ended the consumer.
    pub failure: Option<Arc<ConsumerError>>,
    /// The delays of frames, if the consumer measured them.
    pub latency: Option<LatencyReport>,
    /// Report on the interface that the consumer fed.
    pub netdev: Option<NetdevReport>,
    /// Report on the flows that the consumer counted.
    pub flows: Option<FlowsReport>,
    /// Report of the recorder.
    pub recorder: Option<RecorderReport>,
}

impl RunResult {
    /// Returns all errors: those of outputs (unless their reader has left), of sources, and of exports of flows.
    pub fn errors(&self) -> Vec<String> {
        let failures = self.consumers.iter().filter_map(|consumer| consumer.failure.as_ref());
        let outputs = failures.filter(|failure| !failure.wants_no_more());
        let outputs = outputs.map(|failure| error_text(failure));
        let sources = self.sources.iter().filter_map(|source| source.error.as_ref());
        let sources = sources.filter(|_| !self.has_all_requested());
        let flows = self.consumers.iter().filter_map(|consumer| consumer.flows.as_ref());
        let exports = flows.flat_map(|flows| &flows.exports);
        let exports = exports.filter_map(|export| export.error.clone());
        outputs.chain(sources.cloned()).chain(exports).collect()
    }

    /// Returns the error of a source that came after the last requested frame. A file is read ahead, so damage behind
    /// that frame may or may not be met.
    pub fn error_behind_limit(&self) -> Option<&str> {
        self.sources.first()?.error.as_deref().filter(|_| self.has_all_requested())
    }

    /// Returns whether the main consumer has taken all requested frames before any error of a source. With several
    /// sources this is not known: the one that failed may have had earlier frames than the others.
    fn has_all_requested(&self) -> bool {
        self.sources.len() == 1 && self.consumers.first().is_some_and(|main| main.is_complete)
    }
}

impl ConsumerResult {
    /// Returns this consumer's number of an interface of a feed; `None` if the consumer does not know the interface.
    pub fn interface(&self, output: usize, id: u32) -> Option<u32> {
        self.interfaces.get(output)?.get(id as usize).copied()
    }

    /// Returns the counts of frames that the consumer took from a feed, summed over the link types that the feed had in
    /// its lives.
    ///
    /// `None` if the feed was never open, or the consumer does not count by interface.
    pub fn taken(&self, output: usize) -> Option<Taken> {
        if self.by_interface.is_empty() {
            return None;
        }
        let numbers = self.interfaces.get(output).filter(|numbers| !numbers.is_empty())?;
        let own = numbers.iter().filter_map(|number| self.by_interface.get(*number as usize));
        let sum = |all: Taken, one: &Taken| Taken {
            frames: all.frames + one.frames,
            lapped: all.lapped + one.lapped,
            untriggered: all.untriggered + one.untriggered,
        };
        Some(own.fold(Taken::default(), sum))
    }

    /// Assigns the frames that did not reach the output to counters.
    ///
    /// `kept` frames were taken and have reached the output; `unread` frames are still in the rings. No counter is
    /// derived from the number of captured frames, because the report compares their sum with that number.
    pub fn account(&mut self, kept: Count, unread: u64, limited: bool) {
        let taken = self.delivered.frames;
        self.delivered.frames = kept.frames;
        self.delivered.wire_bytes = kept.wire_bytes;
        self.store_drops = taken.saturating_sub(kept.frames).saturating_sub(self.netdev_drops());
        match self.failure.as_deref() {
            Some(ConsumerError::Ring(_)) => self.ring_drops = unread,
            Some(ConsumerError::Output(_)) => self.store_drops += unread,
            Some(
                ConsumerError::ReaderGone(_)
                | ConsumerError::ReaderStalled(_)
                | ConsumerError::Complete(_),
            ) => {
                self.delivered.after_limit = std::mem::take(&mut self.store_drops) + unread;
            }
            None if limited => self.delivered.after_limit = unread,
            // `unread` should be 0. If not, the ledger shows these frames as unexplained.
            None => {}
        }
    }

    /// Counts unread frames of a feed as lapped: its rings were dropped because the consumer was too slow.
    pub fn let_go(&mut self, output: Option<usize>, frames: u64) {
        self.delivered.lapped += frames;
        let first = output.and_then(|output| self.interface(output, 0));
        if let Some(first) = first.map(|first| first as usize) {
            self.by_interface.resize(self.by_interface.len().max(first + 1), Taken::default());
            self.by_interface[first].lapped += frames;
        }
    }

    /// Returns the number of frames that were taken from the rings and that the fed interface refused.
    pub fn netdev_drops(&self) -> u64 {
        self.netdev.as_ref().map_or(0, |netdev| netdev.refused)
    }

    /// Returns the numbers of captured frames that this consumer lost, except lapped ones, by the name of the counter.
    pub fn drops(&self) -> BTreeMap<&'static str, u64> {
        let mut drops = BTreeMap::new();
        drops.insert("store", self.store_drops);
        drops.insert("ring", self.ring_drops);
        if self.netdev.is_some() {
            drops.insert("netdev", self.netdev_drops());
        }
        drops
    }

    /// Returns the number of captured frames that this consumer lost, including lapped ones.
    pub fn lost(&self) -> u64 {
        self.delivered.lapped + self.drops().values().sum::<u64>()
    }

    /// Returns the sum of all counters of this consumer. The sum equals the number of captured frames, unless there is
    /// a bug.
    pub fn accounted(&self) -> i128 {
        let Delivered { frames, lapped, untriggered, after_limit, .. } = self.delivered;
        let all = [frames, lapped, untriggered, after_limit, self.waiting.unwrap_or(0)];
        all.iter().chain(self.drops().values()).map(|count| i128::from(*count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_the_only_source_counts_unless_all_requested_frames_came_before() {
        let result = |sources, is_complete| RunResult {
            sources: (0..sources)
                .map(|_| SourceResult { error: Some("cut short".into()), ..Default::default() })
                .collect(),
            feeds: Vec::new(),
            consumers: vec![ConsumerResult { is_complete, ..ConsumerResult::default() }],
            duration: Duration::ZERO,
            rates: None,
        };
        assert_eq!(result(1, false).errors(), ["cut short"]);
        assert_eq!(result(1, false).error_behind_limit(), None);
        assert!(result(1, true).errors().is_empty());
        assert_eq!(result(1, true).error_behind_limit(), Some("cut short"));
        assert_eq!(result(2, true).errors().len(), 2);
        assert_eq!(result(2, true).error_behind_limit(), None);
    }
}
