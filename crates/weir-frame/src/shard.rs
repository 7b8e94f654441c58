//! Parts of a link's flows: the second of four shards (`eth0@2/4`), or every tenth flow.
//!
//! Both use [`shard_hash`](crate::flow::shard_hash), which is the same for both directions of a connection and for
//! all fragments of a packet: these stay together. Shards use its upper half and samples its lower half, so that a
//! sample of a shard is representative. `bpf/flow.h` has the same computation in C.

use std::fmt;
use std::num::NonZero;
use std::str::FromStr;

pub use crate::limits::SHARDS_MAX;

/// One of several shards of a link's frames: every frame is in exactly one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    index: u32,
    of: u32,
}

/// An error: the text or the number is not a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a shard is one of up to {SHARDS_MAX}, counted from 1: @1/4 to @4/4 are the four of four")]
pub struct NoSuchShard;

impl Shard {
    /// The shard that contains all frames.
    pub const WHOLE: Shard = Shard { index: 0, of: 1 };

    /// Returns the shard `number`, counted from 1, of `of`.
    ///
    /// # Errors
    /// [`NoSuchShard`] unless 1 <= `number` <= `of` <= [`SHARDS_MAX`].
    pub fn new(number: u32, of: u32) -> Result<Shard, NoSuchShard> {
        if number == 0 || number > of || of > SHARDS_MAX {
            return Err(NoSuchShard);
        }
        Ok(Shard { index: number - 1, of })
    }

    /// Returns the number of this shard, counted from 0.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns the number of shards of the link.
    #[must_use]
    pub const fn of(self) -> u32 {
        self.of
    }

    /// Returns whether a frame with this [`shard_hash`](crate::flow::shard_hash) is in the shard.
    // A multiplication instead of a division. Source: Lemire, "A fast alternative to the modulo reduction", 2016. The
    // sizes of any two shards differ by at most one of the 2^32 hashes.
    #[must_use]
    #[inline]
    pub const fn takes(self, shard_hash: u64) -> bool {
        ((shard_hash >> 32) * self.of as u64) >> 32 == self.index as u64
    }
}

/// Formats the shard as it is written after a source and `@`: `2/4`.
impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.of)
    }
}

impl FromStr for Shard {
    type Err = NoSuchShard;

    fn from_str(text: &str) -> Result<Shard, NoSuchShard> {
        let digits = |part: &str| {
            // `parse` alone would accept a sign.
            let number = part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok());
            number.flatten().ok_or(NoSuchShard)
        };
        let (number, of) = text.split_once('/').ok_or(NoSuchShard)?;
        Shard::new(digits(number)?, digits(of)?)
    }
}

/// A sample of flows: one flow of `one_in`, with both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// 1 selects all flows.
    pub one_in: NonZero<u32>,
}

impl Sample {
    /// Returns whether a frame with this [`shard_hash`](crate::flow::shard_hash) is in the sample. Frames without a
    /// flow (hash 0) always are.
    #[must_use]
    #[inline]
    pub const fn takes(self, shard_hash: u64) -> bool {
        ((shard_hash & 0xffff_ffff) * self.one_in.get() as u64) >> 32 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::shard_hash;
    use crate::headers::FrameView;
    use proptest::prelude::*;

    #[test]
    fn text_counts_from_one() {
        let second: Shard = "2/4".parse().unwrap();
        assert_eq!((second.index(), second.of()), (1, 4));
        assert_eq!(second.to_string(), "2/4");
        assert_eq!("1/1".parse(), Ok(Shard::WHOLE));
        assert!("1024/1024".parse::<Shard>().is_ok());
        for wrong in
            ["", "2", "0/4", "5/4", "1/0", "+1/4", "1/ 4", "1/4/1", "1/1025", "1/4294967297"]
        {
            assert_eq!(wrong.parse::<Shard>(), Err(NoSuchShard), "'{wrong}'");
        }
    }

    #[test]
    fn samples_and_shards_do_not_mind_each_other() {
        let shard = Shard::new(3, 4).unwrap();
        let sample = Sample { one_in: NonZero::new(4).unwrap() };
        let mut taken = [0u32; 4];
        for number in 0..=u16::MAX {
            let mut frame = [0; 42];
            frame[12..15].copy_from_slice(&[8, 0, 0x45]);
            frame[23] = 17;
            frame[28..30].copy_from_slice(&number.to_be_bytes());
            let hash = shard_hash(&FrameView::parse(&frame));
            taken[usize::from(shard.takes(hash)) * 2 + usize::from(sample.takes(hash))] += 1;
        }
        // Of 65,536 flows a sixteenth is in both; a binomial deviation there is 62.
        assert!((3_700..4_500).contains(&taken[3]), "{taken:?}");
        assert!((11_600..13_000).contains(&taken[1]), "{taken:?}");
        assert!((11_600..13_000).contains(&taken[2]), "{taken:?}");
        assert!(sample.takes(0) && Shard::new(1, 9).unwrap().takes(0));
    }

    /// UDP over IPv4 or IPv6.
    fn frame(six: bool, ends: [(u128, u16); 2]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        if six {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
            frame.extend(ends[0].0.to_be_bytes());
            frame.extend(ends[1].0.to_be_bytes());
        } else {
            frame.extend([8, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0]);
            frame.extend((ends[0].0 as u32).to_be_bytes());
            frame.extend((ends[1].0 as u32).to_be_bytes());
        }
        frame.extend(ends[0].1.to_be_bytes());
        frame.extend(ends[1].1.to_be_bytes());
        frame.extend([0, 8, 0, 0]);
        frame
    }

    proptest! {
        #[test]
        fn every_connection_is_in_one_shard_with_both_directions(
            six in any::<bool>(),
            ends in any::<[(u128, u16); 2]>(),
            of in 1..=SHARDS_MAX,
        ) {
            let there = shard_hash(&FrameView::parse(&frame(six, ends)));
            let back = shard_hash(&FrameView::parse(&frame(six, [ends[1], ends[0]])));
            let takers = |hash| {
                let shards = (1..=of).map(|number| Shard::new(number, of).unwrap());
                shards.filter(|shard| shard.takes(hash)).collect::<Vec<_>>()
            };
            prop_assert_eq!(takers(there).len(), 1);
            prop_assert_eq!(takers(there), takers(back));
        }
    }
}
