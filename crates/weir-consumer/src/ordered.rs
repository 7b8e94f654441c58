//! Frames in time order, handed to a sink.

use std::time::Duration;

use weir_frame::pcapng::Statistics;
use weir_ring::{Mapping, Words};

use crate::account::{Delivered, Taken};
use crate::consumer::{Consumer, ConsumerError, Step, TURN_FRAMES};
use crate::counted::Count;
use crate::lanes::Rings;
use crate::merge::{Merge, Turn};
use crate::numbering::OutputInterface;
use crate::sink::Sink;
use crate::source::JoinedFeed;

/// Takes frames in time order and hands them to a sink.
pub struct Ordered<S, M: Words = Mapping> {
    merge: Merge<M>,
    output: Output<S>,
    wire_bytes: u64,
}

/// Where frames go.
struct Output<S> {
    sink: S,
    /// Interfaces that the sink knows.
    described: usize,
}

impl<S: Sink> Output<S> {
    #[inline]
    fn describe(&mut self, interfaces: &[OutputInterface]) -> Result<(), ConsumerError> {
        while let Some(next) = interfaces.get(self.described) {
            self.sink.describe(self.described as u32, &next.interface, &next.label)?;
            self.described += 1;
        }
        Ok(())
    }
}

impl<S: Sink, M: Words> Ordered<S, M> {
    /// Hands nothing over before a feed joins; `slack` as in [`Merge`].
    #[must_use]
    pub fn new(slack: Duration, sink: S) -> Ordered<S, M> {
        Ordered { merge: Merge::new(slack), output: Output { sink, described: 0 }, wire_bytes: 0 }
    }
}

impl<S: Sink, M: Words> Consumer<M> for Ordered<S, M> {
    fn join(&mut self, feed: JoinedFeed<M>) -> Result<(), ConsumerError> {
        self.merge.join(feed)?;
        self.output.describe(self.merge.numbering().interfaces())
    }

    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError> {
        let Ordered { output, wire_bytes, .. } = self;
        let turn = self.merge.turn(frames_max.min(TURN_FRAMES), |record, interfaces| {
            output.describe(interfaces)?;
            output.sink.take(record)?;
            *wire_bytes += u64::from(record.meta.wire_len);
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
        self.output.sink.flush()
    }

    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError> {
        self.output.sink.finish(statistics)
    }

    fn kept(&self) -> Count {
        self.output.sink.kept()
    }

    fn by_interface(&self) -> Vec<Taken> {
        self.merge.by_interface()
    }

    fn rings(&self) -> &dyn Rings<M> {
        self.merge.rings()
    }

    fn rings_mut(&mut self) -> &mut dyn Rings<M> {
        self.merge.rings_mut()
    }

    fn due(&self) -> Duration {
        self.merge.due()
    }
}
