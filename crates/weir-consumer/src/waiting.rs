//! A consumer that found nothing waits: pauses while frames come, then asleep until it is woken.

use std::thread;
use std::time::{Duration, Instant};

use weir_ring::geometry::BLOCK_BYTES;
use weir_ring::idle::{IdleStrategy, SLEEP_MAX, Wait, Waited};
use weir_ring::wake::Sleeper;
use weir_ring::{Mapping, Ring};

use crate::consumer::{Consumer, ConsumerError, Step};

/// How long frames may be in the consumer's buffer while more keep coming.
const FLUSH_EVERY: Duration = Duration::from_millis(5);
/// Before a pause of this length the buffer is let out: what is in it would wait as long.
const LONG_PAUSE: Duration = Duration::from_millis(1);

/// Carries out what the [`IdleStrategy`] says.
#[derive(Debug)]
pub struct Waiting {
    sleeper: Sleeper,
    strategy: IdleStrategy,
    waited: Waited,
    /// Frames that had been written when the last wait ended.
    written: u64,
    flushed: Instant,
}

impl Waiting {
    /// For a consumer of `rings`, which `sleeper` sleeps on.
    #[must_use]
    pub fn new(sleeper: Sleeper, rings: &[Ring<Mapping>]) -> Waiting {
        let waited = Waited { lasted: Duration::ZERO, came: false, fill: 0.0 };
        let bytes = |ring: &Ring<Mapping>| ring.geometry().data_blocks * u64::from(BLOCK_BYTES);
        let strategy = IdleStrategy::new(rings.iter().map(bytes).min().unwrap_or_default());
        Waiting { sleeper, strategy, waited, written: 0, flushed: Instant::now() }
    }

    /// Waits after a step that was [`Step::Idle`] or [`Step::Waiting`].
    ///
    /// # Errors
    /// [`ConsumerError`] if what was collected cannot be let out, or the kernel refuses to wait.
    pub fn wait<C: Consumer + ?Sized>(
        &mut self,
        consumer: &mut C,
        step: Step,
    ) -> Result<(), ConsumerError> {
        let wait = match step {
            Step::Waiting => Wait::Pause(self.strategy.next_held(self.waited, consumer.due())),
            _ => self.strategy.next(self.waited),
        };
        let is_short = matches!(wait, Wait::Pause(pause) if pause < LONG_PAUSE);
        if !is_short || self.flushed.elapsed() >= FLUSH_EVERY {
            consumer.flush()?;
            self.flushed = Instant::now();
        }
        let begin = Instant::now();
        match wait {
            Wait::Pause(pause) => thread::sleep(pause),
            Wait::Sleep => drop(self.sleeper.sleep(&consumer.readers(), 1, SLEEP_MAX)?),
        }
        let written = consumer.written();
        let came = written != std::mem::replace(&mut self.written, written);
        self.waited = Waited { lasted: begin.elapsed(), came, fill: consumer.fill() };
        Ok(())
    }
}
