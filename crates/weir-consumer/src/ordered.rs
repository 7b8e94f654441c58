//! Frames in time order, handed to a sink.

use std::time::Duration;

use weir_frame::pcapng::Statistics;
use weir_ring::{Mapping, Reader, Ring, RingError};

use crate::account::{self, Delivered, Taken, behind, fullest};
use crate::consumer::{Consumer, ConsumerError, Step, TURN_FRAMES};
use crate::counted::Count;
use crate::merge::{Merge, Turn};
use crate::numbering::Numbering;
use crate::sink::Sink;

/// Takes frames in time order and hands them to a sink.
pub struct Ordered<S> {
    merge: Merge,
    /// Where they go.
    sink: S,
    wire_bytes: u64,
    /// Frames by the output's number of their interface.
    frames: Vec<u64>,
}

impl<S: Sink> Ordered<S> {
    /// Reads `rings` from their oldest frames on; `slack` as in [`Merge`].
    ///
    /// # Errors
    /// [`RingError`] for a ring that contradicts itself.
    pub fn new(
        rings: &[Ring<Mapping>],
        numbering: Numbering,
        slack: Duration,
        sink: S,
    ) -> Result<Ordered<S>, RingError> {
        Ok(Ordered {
            merge: Merge::new(rings, numbering, slack)?,
            sink,
            wire_bytes: 0,
            frames: Vec::new(),
        })
    }
}

impl<S: Sink> Consumer for Ordered<S> {
    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError> {
        let Ordered { sink, wire_bytes, frames, .. } = self;
        let turn = self.merge.turn(frames_max.min(TURN_FRAMES), |record| {
            sink.take(record)?;
            *wire_bytes += u64::from(record.meta.wire_len);
            let id = record.meta.interface_id as usize;
            if id >= frames.len() {
                frames.resize(id + 1, 0);
            }
            frames[id] += 1;
            Ok::<(), ConsumerError>(())
        })?;
        Ok(match turn {
            Turn::Passed(_) => Step::Busy,
            Turn::Waiting => Step::Waiting,
            Turn::Empty => Step::Idle,
            Turn::Ended => Step::Ended,
        })
    }

    fn delivered(&self) -> Delivered {
        Delivered {
            frames: self.merge.passed(),
            wire_bytes: self.wire_bytes,
            lapped: self.merge.lapped(),
            late: self.merge.late(),
            after_limit: 0,
        }
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.sink.flush()
    }

    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError> {
        self.sink.finish(statistics)
    }

    fn kept(&self) -> Count {
        self.sink.kept()
    }

    fn by_interface(&self) -> Vec<Taken> {
        let mut taken = account::by_interface(&self.readers(), self.merge.numbering(), |_| 0);
        for (taken, frames) in taken.iter_mut().zip(&self.frames) {
            taken.frames = *frames;
        }
        taken
    }

    fn readers(&self) -> Vec<Reader<Mapping>> {
        self.merge.readers().cloned().collect()
    }

    fn ordinal(&self, ring: usize) -> u64 {
        self.merge.readers().nth(ring).map_or(0, Reader::ordinal)
    }

    fn due(&self) -> Duration {
        self.merge.due()
    }

    fn unread(&self) -> u64 {
        self.merge.readers().map(behind).sum::<u64>() + self.merge.held()
    }

    fn fill(&self) -> f64 {
        fullest(self.merge.readers())
    }
}
