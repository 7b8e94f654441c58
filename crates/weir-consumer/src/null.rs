//! The null monitor: it counts frames where they lie.

use weir_ring::{Mapping, Poll, Reader, Ring, RingError, Start, Tally};

use crate::account::{self, Delivered, Taken, behind, fullest};
use crate::consumer::{Consumer, ConsumerError, Step, TURN_FRAMES};
use crate::numbering::Numbering;

/// Counts frames where they lie.
pub struct Null {
    readers: Vec<Reader<Mapping>>,
    /// The ring that the next turn begins with: each in its turn, or a busy one would starve the rest.
    first: usize,
    /// By ring.
    tallies: Vec<Tally>,
    numbering: Numbering,
}

impl Null {
    /// Counts from the oldest frames of `rings` on.
    ///
    /// # Errors
    /// [`RingError`] for a ring that contradicts itself.
    pub fn new(rings: &[Ring<Mapping>], numbering: Numbering) -> Result<Null, RingError> {
        let readers = rings.iter().map(|ring| Reader::new(ring, Start::Oldest));
        let readers = readers.collect::<Result<_, _>>()?;
        Ok(Null { readers, first: 0, tallies: vec![Tally::default(); rings.len()], numbering })
    }

    fn frames(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.frames).sum()
    }
}

impl Consumer for Null {
    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError> {
        let before = self.frames();
        let (mut moved, mut closed) = (false, 0);
        let count = self.readers.len();
        self.first = (self.first + 1) % count;
        for index in (self.first..count).chain(0..self.first) {
            loop {
                let left = frames_max.min(TURN_FRAMES) - (self.frames() - before);
                if left == 0 {
                    return Ok(Step::Busy);
                }
                match self.readers[index].count_in_place(&mut self.tallies[index], left as u32)? {
                    Poll::Frames(_) | Poll::Lapped(_) => moved = true,
                    Poll::Empty => break,
                    Poll::Closed => {
                        closed += 1;
                        break;
                    }
                }
            }
        }
        Ok(match (moved, closed == self.readers.len()) {
            (true, _) => Step::Busy,
            (false, true) => Step::Ended,
            (false, false) => Step::Idle,
        })
    }

    fn delivered(&self) -> Delivered {
        Delivered {
            frames: self.frames(),
            wire_bytes: self.tallies.iter().map(|tally| tally.wire_bytes).sum(),
            lapped: self.readers.iter().map(Reader::lapped).sum(),
            ..Delivered::default()
        }
    }

    fn by_interface(&self) -> Vec<Taken> {
        account::by_interface(&self.readers, &self.numbering, |number| self.tallies[number].frames)
    }

    fn readers(&self) -> Vec<Reader<Mapping>> {
        self.readers.clone()
    }

    fn ordinal(&self, ring: usize) -> u64 {
        self.readers[ring].ordinal()
    }

    fn unread(&self) -> u64 {
        self.readers.iter().map(behind).sum()
    }

    fn fill(&self) -> f64 {
        fullest(self.readers.iter())
    }
}
