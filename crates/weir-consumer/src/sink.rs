//! Where merged frames go.

use weir_frame::pcapng::Statistics;
use weir_frame::record::Record;

use crate::consumer::ConsumerError;
use crate::counted::Count;

/// Where merged frames go: a file, a pipe, lines of text.
pub trait Sink {
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
