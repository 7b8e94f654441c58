//! Waits of a consumer when there are no frames: it pauses while frames come, then sleeps until it is woken.

use std::thread;
use std::time::{Duration, Instant};

use weir_ring::RingError;
use weir_ring::idle::{IdleStrategy, Wait, Waited};
use weir_ring::wake::{Sleeper, Woken};

use crate::consumer::{Consumer, ConsumerError, Step};
use crate::lanes::Rings;

/// Longest time that frames stay in the consumer's buffer while more frames come.
const FLUSH_EVERY: Duration = Duration::from_millis(5);
/// The buffer is written before a pause of this length or longer, because its frames would have to wait.
const FLUSH_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Carries out the decisions of the [`IdleStrategy`].
#[derive(Debug)]
pub(crate) struct Waiting {
    strategy: IdleStrategy,
    waited: Waited,
    /// Number of frames that had been written when the last wait ended.
    written: u64,
    flushed: Instant,
    /// Whether a pause that filling rings can end has set thresholds in the sleeper's lines.
    has_set_lines: bool,
}

impl Waiting {
    pub(crate) fn new() -> Waiting {
        let waited = Waited { lasted: Duration::ZERO, came: false, fill: 0.0 };
        let strategy = IdleStrategy::new(0);
        Waiting { strategy, waited, written: 0, flushed: Instant::now(), has_set_lines: false }
    }

    /// Waits after a step without frames: pauses, or sleeps on `sleeper` for at most `sleep_max`. Returns how a sleep
    /// ended.
    ///
    /// # Errors
    /// [`ConsumerError`] if the collected frames cannot be written, or the kernel refuses to wait.
    pub(crate) fn wait<C: Consumer + ?Sized>(
        &mut self,
        consumer: &mut C,
        sleeper: &Sleeper,
        step: Step,
        sleep_max: Duration,
    ) -> Result<Option<Woken>, ConsumerError> {
        let wait = self.next(consumer.rings(), step, || consumer.due());
        if let (Wait::Pause(pause), Some(long)) = (wait, self.strategy.long_pause())
            && step != Step::Writing
            && consumer.allows_delay()
        {
            consumer.flush()?;
            self.flushed = Instant::now();
            return Ok(self.pause_until_quarter(
                pause,
                long,
                consumer.rings(),
                sleeper,
                sleep_max,
            )?);
        }
        // While an output is busy the thresholds stay set, because the long pauses continue after that.
        if step != Step::Writing && std::mem::take(&mut self.has_set_lines) {
            consumer.rings().readers().iter().for_each(|(line, _)| sleeper.free_line(*line));
        }
        let is_short = matches!(wait, Wait::Pause(pause) if pause < FLUSH_PAUSE_MIN);
        if !is_short || self.flushed.elapsed() >= FLUSH_EVERY {
            consumer.flush()?;
            self.flushed = Instant::now();
        }
        Ok(self.carry_out(wait, consumer.rings(), sleeper, sleep_max)?)
    }

    /// Returns how to wait after a step without frames. `due` returns the time of [`Consumer::due`].
    pub(crate) fn next(
        &mut self,
        rings: &dyn Rings,
        step: Step,
        due: impl FnOnce() -> Duration,
    ) -> Wait {
        self.strategy.set_ring_bytes(rings.ring_bytes_min());
        match step {
            Step::Waiting | Step::Writing => {
                Wait::Pause(self.strategy.next_held(self.waited, due()))
            }
            _ => self.strategy.next(self.waited),
        }
    }

    /// Waits as `wait` says, but at most for `limit`. Returns how a sleep ended.
    ///
    /// # Errors
    /// [`RingError`] if the kernel refuses to wait.
    pub(crate) fn carry_out(
        &mut self,
        wait: Wait,
        rings: &dyn Rings,
        sleeper: &Sleeper,
        limit: Duration,
    ) -> Result<Option<Woken>, RingError> {
        self.timed(rings, || match wait {
            Wait::Pause(pause) => {
                thread::sleep(pause.min(limit));
                Ok(None)
            }
            Wait::Sleep => {
                let readers = rings.readers();
                let readers = readers.iter().map(|(line, reader)| (*line, reader));
                Ok(Some(sleeper.sleep_on(readers, 1, limit)?))
            }
        })
    }

    /// Waits for `long` if a filling ring can end this wait, else for `pause`.
    fn pause_until_quarter(
        &mut self,
        pause: Duration,
        long: Duration,
        rings: &dyn Rings,
        sleeper: &Sleeper,
        limit: Duration,
    ) -> Result<Option<Woken>, RingError> {
        self.has_set_lines = true;
        self.timed(rings, || {
            let readers = rings.readers();
            let readers = readers.iter().map(|(line, reader)| (*line, reader));
            let woken = sleeper.wait_for_quarter(readers, long.min(limit))?;
            if woken.is_none() {
                thread::sleep(pause.min(limit));
            }
            Ok(woken)
        })
    }

    /// Carries out a wait, and measures the frames that come meanwhile.
    fn timed(
        &mut self,
        rings: &dyn Rings,
        wait: impl FnOnce() -> Result<Option<Woken>, RingError>,
    ) -> Result<Option<Woken>, RingError> {
        let (begin, held) = (Instant::now(), rings.fill());
        let woken = wait()?;
        let written = rings.written();
        let came = written != std::mem::replace(&mut self.written, written);
        let fill = (rings.fill() - held).max(0.0);
        self.waited = Waited { lasted: begin.elapsed(), came, fill };
        Ok(woken)
    }
}
