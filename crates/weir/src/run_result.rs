//! The result of a run: what became of its frames, and why it ended.

use std::time::Duration;

use weir_capture::Outcome;
use weir_capture::error::error_text;
use weir_consumer::{ConsumerError, Count, Delivered, Taken};

use crate::consumers::LatencyReport;
use crate::report::Report;
use crate::sources::Subscribed;

/// A run that has come to its end.
pub struct RunResult {
    pub outcomes: Vec<Outcome>,
    /// The feeds that were asked for.
    pub feeds: Vec<Subscribed>,
    /// The main one first.
    pub consumers: Vec<ConsumerResult>,
    pub duration: Duration,
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
    /// Why it could not go on.
    pub failure: Option<ConsumerError>,
    /// How long frames took, if it timed them.
    pub latency: Option<LatencyReport>,
}

impl RunResult {
    /// The ledger and what was delivered, to print.
    pub fn report(&self) -> Report<'_> {
        let RunResult { outcomes, feeds, consumers, duration } = self;
        Report { outcomes, feeds, consumers, duration: *duration }
    }

    /// What went wrong, each thing for itself: outputs, unless their readers wanted no more, and every
    /// source that failed.
    pub fn errors(&self) -> Vec<String> {
        let failures = self.consumers.iter().filter_map(|consumer| consumer.failure.as_ref());
        let outputs = failures.filter(|failure| !failure.is_readers_choice());
        let outputs = outputs.map(|failure| error_text(failure));
        let sources = self.outcomes.iter().filter_map(|outcome| outcome.error.as_ref());
        outputs.chain(sources.map(|error| error_text(error))).collect()
    }
}

impl ConsumerResult {
    /// The number that this consumer has for an interface of a feed of the run.
    pub fn interface(&self, feed: u32, id: u32) -> Option<u32> {
        self.interfaces.get(feed as usize)?.get(id as usize).copied()
    }

    /// Names what became of the frames: of those taken, `kept` are safely out; `unread` are in the rings
    /// still. Each is counted where it happens, and none is derived from what was captured: the
    /// report compares them with that.
    pub fn account(&mut self, kept: Count, unread: u64, limited: bool) {
        let taken = self.delivered.frames;
        self.delivered.frames = kept.frames;
        self.delivered.wire_bytes = kept.wire_bytes;
        self.store_drops = taken - kept.frames;
        match &self.failure {
            Some(ConsumerError::Ring(_)) => self.ring_drops = unread,
            Some(ConsumerError::Output(_)) => self.store_drops += unread,
            Some(ConsumerError::ReaderGone(_) | ConsumerError::ReaderStalled(_)) => {
                self.delivered.after_limit = std::mem::take(&mut self.store_drops) + unread;
            }
            None if limited => self.delivered.after_limit = unread,
            // Nothing should be left. If it is, the ledger shows it as unexplained.
            None => {}
        }
    }

    /// Frames that were captured and that this consumer lost.
    pub fn lost(&self) -> u64 {
        self.delivered.lapped + self.store_drops + self.ring_drops
    }

    /// Frames that this consumer accounts for: as many as were captured.
    pub fn accounted(&self) -> i128 {
        let Delivered { frames, lapped, after_limit, .. } = self.delivered;
        let all = [frames, lapped, after_limit, self.store_drops, self.ring_drops];
        all.map(i128::from).iter().sum()
    }
}
