//! Where merged frames go.

use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;
use weir_ring::batch::Records;

use crate::consumer::ConsumerError;
use crate::counted::Count;

/// Frames of one ring that follow each other in the output.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Their records end to end, as pcapng blocks that a file takes as they are.
    pub block_bytes: &'a [u8],
    /// How many, and their bytes on the wire.
    pub count: Count,
}

impl<'a> Run<'a> {
    /// The records, in order.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        Records::of(self.block_bytes)
    }
}

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

    /// Most frames that it takes at a time ([`take_run`](Sink::take_run)): 1 unless it says otherwise.
    fn run_frames_max(&self) -> u64 {
        1
    }

    /// Takes frames that follow each other. If it fails, none of them comes again.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        run.records().try_for_each(|record| self.take(&record))
    }

    /// Nothing more is due just now: the next frames come in another turn, which may be a wait away.
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

    /// Lets out the rest; `statistics` are those of the run.
    ///
    /// # Errors
    /// As [`take`](Sink::take).
    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError>;

    /// Frames that are safely out.
    fn kept(&self) -> Count;
}
