//! The trait that UDP and TCP implement.

use crate::export::Counts;

/// State of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// The transport is ready, in the same session as before.
    Yes,
    /// The transport is ready, in a new session: the collector has no templates yet.
    NewSession,
    /// The transport is ready, in the same session. But the collector may have restarted and lost its templates.
    TemplatesLost,
    /// The collector is unreachable.
    No,
}

/// Sends messages to a collector, and counts their flows.
pub(super) trait Transport: Send {
    /// Connects if there is no session and it is time for another attempt. Called before messages are sent.
    fn prepare(&mut self) -> Ready;

    /// Sends a message with this number of flows. Returns false if it was not sent; its flows then count as unsent.
    fn send(&mut self, message: &[u8], flows: u64) -> bool;

    /// Counts the flows of messages whose fate is known by now.
    fn settle(&mut self);

    /// Waits for acknowledgements or errors of the last messages. Flows without the required acknowledgement count as
    /// unsent.
    fn finish(&mut self);

    /// Returns the counts so far. Flows whose fate is still open are not counted.
    fn counts(&self) -> Counts;
}
