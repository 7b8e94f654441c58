//! A run that has come to its end: what became of its frames, and why it ended.

use std::time::Duration;

use weir_capture::Outcome;
use weir_consumer::{ConsumerError, Count, Delivered, Taken};

use crate::latency::LatencyReport;
use crate::report::{Report, error_text};
use crate::sources::Subscribed;

/// A run that has come to its end.
pub struct Ran {
    pub outcomes: Vec<Outcome>,
    /// The feeds that were asked for.
    pub feeds: Vec<Subscribed>,
    pub delivered: Delivered,
    /// What the consumer took, by interface id.
    pub by_interface: Vec<Taken>,
    pub duration: Duration,
    /// Frames that were taken from the rings and that the output lost.
    pub store_drops: u64,
    /// Frames that stayed in the rings because these could not be read any more.
    pub ring_drops: u64,
    /// Why the consumer could not go on.
    pub failure: Option<ConsumerError>,
    /// How long frames took, if that was asked for.
    pub latency: Option<LatencyReport>,
}

impl Ran {
    /// The ledger and what was delivered, to print.
    pub fn report(&self) -> Report<'_> {
        let Ran { outcomes, delivered, duration, store_drops, ring_drops, latency, .. } = self;
        Report {
            outcomes,
            feeds: &self.feeds,
            by_interface: &self.by_interface,
            delivered: *delivered,
            duration: *duration,
            store_drops: *store_drops,
            ring_drops: *ring_drops,
            latency: *latency,
        }
    }

    /// What went wrong, each thing for itself: the output, unless its reader wanted no more, and every
    /// source that failed.
    pub fn errors(&self) -> Vec<String> {
        let output = self.failure.as_ref().filter(|failure| !failure.is_readers_choice());
        let output = output.map(|failure| error_text(failure));
        let sources = self.outcomes.iter().filter_map(|outcome| outcome.error.as_ref());
        output.into_iter().chain(sources.map(|error| error_text(error))).collect()
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
                self.delivered.after_limit = std::mem::take(&mut self.store_drops) + unread
            }
            None if limited => self.delivered.after_limit = unread,
            // Nothing should be left. If it is, the ledger shows it as unexplained.
            None => {}
        }
    }
}
