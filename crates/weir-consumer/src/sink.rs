//! The trait of outputs for merged frames.

use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;
use weir_ring::batch::Records;

use crate::consumer::ConsumerError;
use crate::counted::Count;

/// Consecutive frames of one ring, which are also consecutive in the output.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Their records end to end: pcapng blocks that can be written to a file unchanged.
    pub block_bytes: &'a [u8],
    /// Their number, and their bytes on the wire.
    pub count: Count,
}

impl<'a> Run<'a> {
    /// The records, in order.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::of(self.block_bytes)
    }
}

/// An output for merged frames: a file, a pipe, lines of text.
pub trait Sink {
    /// Describes interface number `number`, before its first frame; numbers come in order, from 0. The interface's
    /// texts come from a ring's memory, so they may contain anything. `label` is that of its feed.
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
    /// [`ConsumerError`] for an output; [`kept`](Sink::kept) tells how many frames were written.
    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError>;

    /// Most frames that it takes at a time ([`take_run`](Sink::take_run)): by default 1.
    fn run_frames_max(&self) -> u64 {
        1
    }

    /// Takes consecutive frames. If this fails, none of them is passed again.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        run.records().try_for_each(|record| self.take(&record))
    }

    /// As [`Consumer::allows_delay`](crate::Consumer::allows_delay).
    fn allows_delay(&self) -> bool {
        false
    }

    /// Called when no more frames are due for now. The next ones come in another turn, perhaps after a wait.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn end_turn(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }

    /// Writes the collected frames.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn flush(&mut self) -> Result<(), ConsumerError>;

    /// Writes the rest, and completes the output; `statistics` are those of the run.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError>;

    /// Frames that the output has kept.
    fn kept(&self) -> Count;
}
