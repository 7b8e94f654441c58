//! A run that has come to its end: what became of its frames, and why it ended.

use std::io;
use std::time::Duration;

use weir_capture::Outcome;
use weir_ring::RingError;
use weir_store::{Count, FileError, Stalled};

use crate::consume::{Delivered, Taken};
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
    pub failure: Option<anyhow::Error>,
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
        let output = self.failure.as_ref().filter(|failure| !reader_is_done(failure));
        let output = output.map(|failure| format!("{failure:#}"));
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
            // A ring that contradicts itself, or cannot be waited for: the output has lost nothing.
            Some(failure) if failure.is::<RingError>() => self.ring_drops = unread,
            Some(failure) if !reader_is_done(failure) => self.store_drops += unread,
            // What the reader of a pipe did not wait for is nobody's loss.
            Some(_) => self.delivered.after_limit = std::mem::take(&mut self.store_drops) + unread,
            None if limited => self.delivered.after_limit = unread,
            // Nothing should be left. If it is, the ledger shows it as unexplained.
            None => {}
        }
    }
}

/// Whether the output ended because its reader wants no more: it left, or it was stopped while it took
/// nothing.
pub fn reader_is_done(failure: &anyhow::Error) -> bool {
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    matches!(failure.downcast_ref(), Some(FileError::PipeClosed { .. }))
        || io_error(failure).is_some_and(gone)
        || is_stalled(failure)
}

/// Whether the output ended because nobody took anything any more.
pub fn is_stalled(failure: &anyhow::Error) -> bool {
    matches!(failure.downcast_ref(), Some(FileError::Stalled { .. }))
        || io_error(failure).is_some_and(Stalled::is_why)
}

fn io_error(failure: &anyhow::Error) -> Option<&io::Error> {
    failure.chain().find_map(|cause| cause.downcast_ref())
}
