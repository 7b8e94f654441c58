//! Where merged frames go.

use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;

use crate::consumer::ConsumerError;
use crate::counted::Count;

/// Where merged frames go: a file, a pipe, lines of text.
pub trait Sink {
    /// Learns of interface number `number`, before its first frame; numbers come in order, from 0. The
    /// interface's texts come from a ring's memory, so they may hold anything. `label` is that of its feed.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn describe(
        &mut self,
        number: u32,
        interface: &Interface,
        label: &str,
    ) -> Result<(), ConsumerError>;

    /// Takes a frame.
    ///
    /// # Errors
    /// [`ConsumerError`], of the outputs' kinds; [`kept`](Sink::kept) says how many frames are out.
    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError>;

    /// Lets out what was collected.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn flush(&mut self) -> Result<(), ConsumerError>;

    /// Lets out the rest; `statistics` are those of the run.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError>;

    /// Frames that are safely out.
    fn kept(&self) -> Count;
}
