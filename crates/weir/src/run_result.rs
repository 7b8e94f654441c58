//! The result of a run: the account of its frames, and why it ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_capture::error::error_text;
use weir_capture::{FilterLocation, Info, InterfaceLedger};
use weir_consumer::{ConsumerError, Count, Delivered, Taken};
use weir_ring::Ledger;
use weir_store::recorder::RecorderReport;

use crate::consumers::{LatencyReport, NetdevReport};
use crate::flows::report::FlowsReport;
use crate::sources::Subscribed;
use crate::units::{bit_rate, packet_rate};

/// A run that has come to its end.
pub struct RunResult {
    pub sources: Vec<SourceResult>,
    /// The feeds that were asked for.
    pub feeds: Vec<FeedResult>,
    /// The main one first.
    pub consumers: Vec<ConsumerResult>,
    pub duration: Duration,
    /// Current rates, while the run lasts.
    pub rates: Option<Rates>,
}

/// Frames and bits a second of the last moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Length of that time in seconds.
    pub over_s: f64,
    /// Offered frames.
    pub offered_pps: f64,
    /// Captured frames.
    pub captured_pps: f64,
    /// Bits of those on the wire.
    pub captured_bps: f64,
    /// Frames that were lost on the way into a ring.
    pub dropped_pps: f64,
    /// Frames that reached the main consumer.
    pub delivered_pps: f64,
    /// Frames that were overwritten before it had read them.
    pub lapped_pps: f64,
}

impl Rates {
    /// As text for people.
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
    /// Its last facts.
    pub info: Info,
    /// Of all its feeds: a frame that was offered to two of them counts twice.
    pub ledger: Ledger,
    /// How often it was opened.
    pub lives: u64,
    /// How often its interface went down.
    pub downs: u64,
    /// Why it ended, if not because it was told to or its frames were at an end.
    pub error: Option<String>,
    /// Its present state, while the run lasts.
    pub now: Option<SourceNow>,
}

/// Present state of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceNow {
    /// Its frames are captured.
    pub is_open: bool,
    /// It brings no more frames. One that neither is open nor has ended is waited for.
    pub has_ended: bool,
}

/// Result of a feed.
#[derive(Clone, Debug)]
pub struct FeedResult {
    /// The request, with the filter that was in force last.
    pub asked: Subscribed,
    /// All of its lives together.
    pub ledger: Ledger,
    /// Where its frames were chosen.
    pub location: FilterLocation,
    /// The shares of its interfaces in that ledger, of a source by pattern.
    pub interfaces: Vec<InterfaceLedger>,
}

/// A consumer that has come to its end.
#[derive(Default)]
pub struct ConsumerResult {
    pub name: &'static str,
    pub delivered: Delivered,
    /// By the number of a feed's first interface; empty if it does not know.
    pub by_interface: Vec<Taken>,
    /// By feed, then by the rings' own number: the numbers of its interfaces.
    pub interfaces: Vec<Vec<u32>>,
    /// Frames that were taken from the rings and that the output lost.
    pub store_drops: u64,
    /// Frames that stayed in the rings because these could not be read any more.
    pub ring_drops: u64,
    /// Frames in the rings that it has not read yet, where it is still at work.
    pub waiting: Option<u64>,
    /// Whether it takes no more frames, while the run lasts.
    pub has_ended: Option<bool>,
    /// Why it could not go on.
    pub failure: Option<Arc<ConsumerError>>,
    /// How long frames took, if it timed them.
    pub latency: Option<LatencyReport>,
    /// Report on the interface that it fed.
    pub netdev: Option<NetdevReport>,
    /// Report on the flows that it counted.
    pub flows: Option<FlowsReport>,
    /// Report of the recorder.
    pub recorder: Option<RecorderReport>,
}

impl RunResult {
    /// All errors, each separately: outputs, unless their readers wanted no more, and every source
    /// that failed.
    pub fn errors(&self) -> Vec<String> {
        let failures = self.consumers.iter().filter_map(|consumer| consumer.failure.as_ref());
        let outputs = failures.filter(|failure| !failure.wants_no_more());
        let outputs = outputs.map(|failure| error_text(failure));
        let sources = self.sources.iter().filter_map(|source| source.error.as_ref());
        let flows = self.consumers.iter().filter_map(|consumer| consumer.flows.as_ref());
        let exports = flows.flat_map(|flows| &flows.exports);
        let exports = exports.filter_map(|export| export.error.clone());
        outputs.chain(sources.cloned()).chain(exports).collect()
    }
}

impl ConsumerResult {
    /// The number that this consumer has for an interface of a feed of the run.
    pub fn interface(&self, output: usize, id: u32) -> Option<u32> {
        self.interfaces.get(output)?.get(id as usize).copied()
    }

    /// Frames that it took of a feed of the run, whatever link types the feed had in its lives; `None` if it was
    /// never there, or the consumer does not know.
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

    /// Names what became of the frames: of those taken, `kept` are safely out; `unread` are in the rings
    /// still. Each is counted where it happens, and none is derived from the captured frames: the report
    /// compares them with that number.
    pub fn account(&mut self, kept: Count, unread: u64, limited: bool) {
        let taken = self.delivered.frames;
        self.delivered.frames = kept.frames;
        self.delivered.wire_bytes = kept.wire_bytes;
        self.store_drops = taken - kept.frames - self.netdev_drops();
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
            // Nothing should be left. If it is, the ledger shows it as unexplained.
            None => {}
        }
    }

    /// Frames of a feed of this output whose rings were dropped unread, because the consumer was too
    /// slow.
    pub fn let_go(&mut self, output: Option<usize>, frames: u64) {
        self.delivered.lapped += frames;
        let first = output.and_then(|output| self.interface(output, 0));
        if let Some(first) = first.map(|first| first as usize) {
            self.by_interface.resize(self.by_interface.len().max(first + 1), Taken::default());
            self.by_interface[first].lapped += frames;
        }
    }

    /// Frames that were taken from the rings and that the interface which it fed did not take.
    pub fn netdev_drops(&self) -> u64 {
        self.netdev.as_ref().map_or(0, |netdev| netdev.refused)
    }

    /// Frames that were captured and that this consumer lost behind its rings, by name.
    pub fn drops(&self) -> BTreeMap<&'static str, u64> {
        let mut drops = BTreeMap::new();
        drops.insert("store", self.store_drops);
        drops.insert("ring", self.ring_drops);
        if self.netdev.is_some() {
            drops.insert("netdev", self.netdev_drops());
        }
        drops
    }

    /// Frames that were captured and that this consumer lost.
    pub fn lost(&self) -> u64 {
        self.delivered.lapped + self.drops().values().sum::<u64>()
    }

    /// Frames that this consumer accounts for: as many as were captured.
    pub fn accounted(&self) -> i128 {
        let Delivered { frames, lapped, untriggered, after_limit, .. } = self.delivered;
        let all = [frames, lapped, untriggered, after_limit, self.waiting.unwrap_or(0)];
        all.iter().chain(self.drops().values()).map(|count| i128::from(*count)).sum()
    }
}
