//! How a consumer waits: short pauses while frames flow, then asleep until it is woken.
//!
//! A pause costs a timer and two switches of context on the consumer's processor, and a look costs the
//! writer a cache line. So pauses grow while the rings stay nearly empty, and shrink at once when one
//! fills: a fast link is looked at as seldom as its rings allow.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use weir_ring::wake::Sleeper;

use crate::consume::Consumer;

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
/// How long a consumer waits for frames that may have to stand before those it has.
const WAIT: Duration = Duration::from_millis(2);

/// What a consumer does when there is nothing to do.
pub struct Rest {
    sleeper: Sleeper,
    pause: Duration,
    pauses: u32,
}

impl Rest {
    pub fn new(sleeper: Sleeper) -> Rest {
        Rest { sleeper, pause: LEAST, pauses: 0 }
    }

    /// Frames came: sleep is four pauses away again.
    pub fn busy(&mut self) {
        self.pauses = 0;
    }

    /// Waits for other rings.
    pub fn wait(&mut self, consumer: &mut dyn Consumer) -> Result<()> {
        consumer.flush()?;
        thread::sleep(WAIT);
        Ok(())
    }

    /// Waits a little, or until woken.
    pub fn idle(&mut self, consumer: &mut dyn Consumer) -> Result<()> {
        if self.pauses < PAUSES_MAX {
            self.pauses += 1;
            thread::sleep(self.pause);
            self.pause = next_pause(self.pause, consumer.fill());
            return Ok(());
        }
        consumer.flush()?;
        self.sleeper.sleep(&consumer.readers(), WAKE_FRAMES, consumer.sleep_limit())?;
        self.pause = LEAST;
        Ok(())
    }
}

/// What to do after a pause that let the fullest ring fill this far.
fn next_pause(pause: Duration, fill: f64) -> Duration {
    if fill >= FILLING {
        LEAST
    } else if fill < NEARLY_EMPTY {
        (pause * 2).min(MOST)
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
            pause = next_pause(pause, 0.01);
        }
        assert_eq!(pause, MOST);
        assert_eq!(next_pause(pause, 0.1), pause);
        assert_eq!(next_pause(pause, 0.2), LEAST);
    }
}
