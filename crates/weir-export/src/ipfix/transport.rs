//! Common parts of UDP and TCP.

use crate::export::Counts;

/// State of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// It sends to the collector that it sent to before.
    Yes,
    /// It sends in a new session: of this one, the collector knows nothing.
    NewSession,
    /// It sends, in the same session, but the collector may have been away, and know no templates.
    TemplatesLost,
    /// The collector is away.
    No,
}

/// Takes messages to a collector, and counts the flows in them.
pub(super) trait Transport: Send {
    /// Connects if there is no session, and a try is due. Called before each message.
    fn prepare(&mut self) -> Ready;

    /// Sends a message with so many flows. False: it did not go out, and its flows are counted as unsent.
    fn send(&mut self, message: &[u8], flows: u64) -> bool;

    /// Looks what became of the messages that were sent.
    fn settle(&mut self);

    /// Waits for data that is still under way; the rest is counted as unsent.
    fn finish(&mut self);

    /// Flows so far. Those under way are in neither count.
    fn counts(&self) -> Counts;
}
