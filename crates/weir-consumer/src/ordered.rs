//! Passes frames to a sink in timestamp order.

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

/// Passes frames to a sink in timestamp order.
pub struct Ordered<S, M: Words = Mapping> {
    merge: Merge<M>,
    output: Output<S>,
    wire_bytes: u64,
}

/// The sink, and how many interfaces it knows.
struct Output<S> {
    sink: S,
    /// Number of interfaces that were described to the sink.
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
    /// Creates a consumer without feeds. `slack` as in [`Merge`].
    #[must_use]
    pub fn new(slack: Duration, sink: S) -> Ordered<S, M> {
        let merge = Merge::new(slack, sink.run_frames_max());
        Ordered { merge, output: Output { sink, described: 0 }, wire_bytes: 0 }
    }

    /// Returns the sink.
    #[must_use]
    pub fn sink(&self) -> &S {
        &self.output.sink
    }

    /// Returns the sink. To be called when no more frames will be passed to it.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.output.sink
    }
}

impl<S: Sink, M: Words> Consumer<M> for Ordered<S, M> {
    fn join(&mut self, feed: JoinedFeed<M>) -> Result<(), ConsumerError> {
        if feed.has_foreign_clock()? {
            self.output.sink.joined_foreign_clock();
        }
        self.merge.join(feed)?;
        self.output.describe(self.merge.numbering().interfaces())
    }

    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError> {
        let Ordered { output, wire_bytes, .. } = self;
        let turn = self.merge.turn(frames_max.min(TURN_FRAMES), |run, interfaces| {
            // Counted before an error can return, because the merge counts the frames as delivered in any case.
            *wire_bytes += run.count.wire_bytes;
            output.describe(interfaces)?;
            output.sink.take_run(run)
        })?;
        Ok(match turn {
            Turn::Passed(_) => {
                output.sink.end_turn()?;
                Step::Busy
            }
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
            untriggered: 0,
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

    fn allows_delay(&self) -> bool {
        self.output.sink.allows_delay()
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

#[cfg(test)]
mod tests {
    use weir_frame::pcapng::Interface;
    use weir_frame::record::Record;

    use super::*;
    use crate::testing::{feed, push, writer};

    /// An output with room for this many frames.
    struct Full(u64);

    impl Sink for Full {
        fn describe(&mut self, _: u32, _: &Interface, _: &str) -> Result<(), ConsumerError> {
            Ok(())
        }

        fn take(&mut self, _: &Record<'_>) -> Result<(), ConsumerError> {
            let full = || ConsumerError::Output("no space left".into());
            self.0 = self.0.checked_sub(1).ok_or_else(full)?;
            Ok(())
        }

        fn flush(&mut self) -> Result<(), ConsumerError> {
            Ok(())
        }

        fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
            Ok(())
        }

        fn kept(&self) -> Count {
            Count::default()
        }
    }

    #[test]
    fn a_frame_that_the_output_refuses_counts_with_its_bytes() {
        let mut writer = writer();
        let mut consumer = Ordered::new(Duration::ZERO, Full(2));
        consumer.join(feed(0, writer.ring())).unwrap();
        (1..=5).for_each(|ts_ns| push(&mut writer, ts_ns));
        assert!(matches!(consumer.step(10), Err(ConsumerError::Output(_))));
        let Delivered { frames, wire_bytes, .. } = consumer.delivered();
        assert_eq!((frames, wire_bytes), (3, 180), "60 bytes a frame");
        assert_eq!(consumer.rings().unread(), 2);
    }
}
