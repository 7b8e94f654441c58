//! How a consumer waits: short pauses while frames flow, then asleep until it is woken.
//!
//! A pause costs a timer and two switches of context on the consumer's processor, and a look costs the
//! writer a cache line. So pauses grow while the rings stay nearly empty, and shrink at once when one
//! fills: a fast link is looked at as seldom as its rings allow.

use std::thread;
use std::time::{Duration, Instant};

use weir_consumer::{Consumer, ConsumerError};
use weir_ring::wake::Sleeper;
use weir_ring::{Mapping, Reader};

/// The first pause, and the longest: far below the 20 ms within which a frame is promised.
const LEAST: Duration = Duration::from_micros(50);
const MOST: Duration = Duration::from_millis(1);
/// Rings filled below this during a pause allow a longer one; above that, the next is the shortest.
const NEARLY_EMPTY: f64 = 1.0 / 32.0;
const FILLING: f64 = 1.0 / 8.0;
/// Pauses without a frame before sleeping for good.
const PAUSES_MAX: u32 = 4;
/// A sleeper is woken by this many frames of one ring, or after the consumer's limit.
const WAKE_FRAMES: u64 = 2048;
/// Fewer of a small ring: not before full-length frames have filled a quarter of it.
const WAKE_FRAMES_PER_BLOCK: u64 = (1 << 20) / 2048 / 4;
/// Once a sleep has brought nothing the link is idle. Then the first frame wakes, and the limit is only for
/// a wish that the programs missed (`weir_ring::doorbell`): each sleep costs an idle machine some 30 us. With
/// `--merge-slack` and the pauses behind it, still within the 20 ms that we promise for a single frame.
const IDLE_LIMIT: Duration = Duration::from_millis(8);
/// The longest pause of a consumer that waits for frames that may have to stand before those it has.
const WAIT_MOST: Duration = Duration::from_millis(2);

/// How long frames may be in the consumer's buffer while more keep coming, each before it would sleep.
const FLUSH_EVERY: Duration = Duration::from_millis(5);

/// What a consumer does when there is nothing to do.
pub struct Rest {
    sleeper: Sleeper,
    pause: Duration,
    pauses: u32,
    /// The next pause for other rings.
    wait: Duration,
    /// The last sleep brought nothing.
    is_idle: bool,
    flushed: Instant,
}

impl Rest {
    pub fn new(sleeper: Sleeper) -> Rest {
        let (pause, wait, flushed) = (LEAST, WAIT_MOST, Instant::now());
        Rest { sleeper, pause, pauses: 0, wait, is_idle: false, flushed }
    }

    /// Frames came: sleep is four pauses away again.
    pub fn busy(&mut self) {
        self.pauses = 0;
        self.is_idle = false;
    }

    /// Waits for other rings, briefly where one fills meanwhile: from half a ring on nothing waits any more
    /// (`weir_consumer::Merge`), and that must be noticed before the ring is full.
    pub fn wait(&mut self, consumer: &mut dyn Consumer) -> Result<(), ConsumerError> {
        consumer.flush()?;
        self.wait = next_pause(self.wait, consumer.fill(), WAIT_MOST);
        thread::sleep(self.wait);
        Ok(())
    }

    /// Waits a little, or until woken.
    pub fn idle(&mut self, consumer: &mut dyn Consumer) -> Result<(), ConsumerError> {
        if self.pauses < PAUSES_MAX {
            self.pauses += 1;
            if self.flushed.elapsed() >= FLUSH_EVERY {
                consumer.flush()?;
                self.flushed = Instant::now();
            }
            thread::sleep(self.pause);
            self.pause = next_pause(self.pause, consumer.fill(), MOST);
            return Ok(());
        }
        consumer.flush()?;
        let readers = consumer.readers();
        let (frames, limit) = match self.is_idle {
            true => (1, consumer.sleep_limit().max(IDLE_LIMIT)),
            false => (wake_frames(&readers), consumer.sleep_limit()),
        };
        self.is_idle = !self.sleeper.sleep(&readers, frames, limit)?;
        self.pause = LEAST;
        Ok(())
    }
}

/// How many frames of one ring end a sleep while frames flow.
fn wake_frames(readers: &[Reader<Mapping>]) -> u64 {
    let blocks = readers.iter().map(|reader| reader.ring().geometry().data_blocks).min();
    blocks.map_or(WAKE_FRAMES, |blocks| WAKE_FRAMES.min(blocks * WAKE_FRAMES_PER_BLOCK))
}

/// What to do after a pause that let the fullest ring fill this far.
fn next_pause(pause: Duration, fill: f64, most: Duration) -> Duration {
    if fill >= FILLING {
        LEAST
    } else if fill < NEARLY_EMPTY {
        (pause * 2).min(most)
    } else {
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_on_an_empty_ring_and_shrink_on_a_filling_one() {
        let mut pause = LEAST;
        for _ in 0..8 {
            pause = next_pause(pause, 0.01, MOST);
        }
        assert_eq!(pause, MOST);
        assert_eq!(next_pause(pause, 0.1, MOST), pause);
        assert_eq!(next_pause(pause, 0.2, MOST), LEAST);
    }
}
