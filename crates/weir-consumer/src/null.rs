//! The null monitor, a consumer that only counts frames.

use weir_ring::{Poll, Tally};

use crate::account::{Delivered, Taken};
use crate::consumer::{Consumer, ConsumerError, Step, TURN_FRAMES};
use crate::lanes::{Lanes, Rings};
use crate::source::JoinedFeed;

/// Counts frames in place.
#[derive(Default)]
pub struct Null {
    lanes: Lanes,
    tally: Tally,
}

impl Null {
    /// Creates a null monitor without feeds.
    #[must_use]
    pub fn new() -> Null {
        Null::default()
    }
}

impl Consumer for Null {
    fn join(&mut self, feed: JoinedFeed) -> Result<(), ConsumerError> {
        Ok(self.lanes.join(feed)?)
    }

    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError> {
        let Null { lanes, tally } = self;
        let until = tally.frames.saturating_add(frames_max.min(TURN_FRAMES));
        let mut moved = false;
        'turn: for lane in lanes.round() {
            loop {
                let left = until - tally.frames;
                if left == 0 {
                    moved = true;
                    break 'turn;
                }
                match lane.cursor.count_in_place(tally, left as u32)? {
                    Poll::Frames(_) | Poll::Lapped(_) => moved = true,
                    Poll::Empty | Poll::Closed => break,
                }
            }
        }
        lanes.retire();
        Ok(Step::of_round(moved, lanes.is_empty()))
    }

    fn delivered(&self) -> Delivered {
        Delivered {
            frames: self.tally.frames,
            wire_bytes: self.tally.wire_bytes,
            lapped: self.lanes.taken().lapped,
            ..Delivered::default()
        }
    }

    fn by_interface(&self) -> Vec<Taken> {
        self.lanes.by_interface()
    }

    fn allows_delay(&self) -> bool {
        true
    }

    fn rings(&self) -> &dyn Rings {
        &self.lanes
    }

    fn rings_mut(&mut self) -> &mut dyn Rings {
        &mut self.lanes
    }
}
