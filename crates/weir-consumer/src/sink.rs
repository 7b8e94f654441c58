//! The trait of outputs for merged frames.

use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;
use weir_ring::batch::Records;

use crate::consumer::ConsumerError;
use crate::counted::Count;

/// Consecutive frames of one ring that are also consecutive in the output.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// The consecutive records of these frames: pcapng blocks that can be written to a file unchanged.
    pub block_bytes: &'a [u8],
    /// The number of frames, and their bytes on the wire.
    pub count: Count,
}

impl<'a> Run<'a> {
    /// Returns the records, in order.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::of(self.block_bytes)
    }
}

/// An output for merged frames: a file, a pipe, lines of text.
pub trait Sink {
    /// Describes interface number `number` before its first frame. Numbers come in order, from 0. The texts of the
    /// interface come from a ring's memory, so they may contain anything. `label` is that of the interface's feed.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn describe(
        &mut self,
        number: u32,
        interface: &Interface,
        label: &str,
    ) -> Result<(), ConsumerError>;

    /// Reports, before its interfaces are described, that a feed has joined whose frames are not stamped by this
    /// machine's clock: frames of a file, or generated ones.
    fn joined_foreign_clock(&mut self) {}

    /// Takes a frame.
    ///
    /// # Errors
    /// [`ConsumerError`] if the output fails; [`kept`](Sink::kept) returns how many frames were written.
    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError>;

    /// Returns how many frames [`take_run`](Sink::take_run) gets at most: by default 1.
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

    /// The same as [`Consumer::allows_delay`](crate::Consumer::allows_delay).
    fn allows_delay(&self) -> bool {
        false
    }

    /// Ends a turn. Called when no more frames are due now. The next frames come in another turn, perhaps after a wait.
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

    /// Writes the remaining data, and completes the output. `statistics` are those of the run.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError>;

    /// Returns how many frames the output has kept.
    fn kept(&self) -> Count;
}
