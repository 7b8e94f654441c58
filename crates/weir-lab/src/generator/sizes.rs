//! Frame sizes: one for all frames, or a mix in a fixed order.
//!
//! A frame's number determines its size, as it determines its flow. So the shares and the bytes of a range of numbers
//! do not depend on which thread sends which frame.

pub use crate::limits::TURN_MAX;

/// The "simple IMIX": 7 of 12 IP packets have 40 bytes, 4 have 576 and 1 has 1500.
///
/// On Ethernet, with header and FCS (18 bytes) and padded to 64, these are 64, 594 and 1518 bytes;
/// the mean is 361.83. Source: Agilent, The Journal of Internet Test Methodologies, 2007, "Mixed
/// Packet Size Throughput". RFC 6985 defines a notation for such mixes, and says that a mix without
/// its sizes is no specification.
pub const IMIX: [(u32, u32); 3] = [(64, 7), (594, 4), (1518, 1)];

/// Sizes on the wire, FCS included, by frame number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Every size once, in the given order, with its number of frames in each turn.
    shares: Vec<(u32, u32)>,
    /// One turn, as indexes into `shares`.
    turn: Vec<u16>,
}

impl From<u32> for Sizes {
    /// Creates one size for all frames.
    fn from(size_on_wire: u32) -> Sizes {
        Sizes { shares: vec![(size_on_wire, 1)], turn: vec![0] }
    }
}

impl Sizes {
    /// Creates a mix of sizes, each with its number of frames in a turn. Shares are reduced: 14:8:2 is 7:4:1.
    ///
    /// # Errors
    /// A message if there is no size, a size occurs twice, a share is 0, or a turn has more than [`TURN_MAX`] frames.
    pub fn mix(shares: &[(u32, u32)]) -> Result<Sizes, String> {
        let twice = |at: usize| shares[..at].iter().any(|share| share.0 == shares[at].0);
        if shares.is_empty() || shares.iter().any(|share| share.1 == 0) {
            return Err("every size of a mix needs a share above 0".to_owned());
        }
        if let Some(at) = (0..shares.len()).find(|&at| twice(at)) {
            return Err(format!("size {} stands twice in the mix", shares[at].0));
        }
        let divisor = shares.iter().fold(0, |divisor, share| gcd(divisor, share.1));
        let shares: Vec<_> = shares.iter().map(|&(size, share)| (size, share / divisor)).collect();
        let frames: u64 = shares.iter().map(|share| u64::from(share.1)).sum();
        if frames > TURN_MAX as u64 {
            return Err(format!("a turn of this mix has {frames} frames; at most {TURN_MAX}"));
        }
        let turn = spread(&shares, frames as u32);
        Ok(Sizes { shares, turn })
    }

    /// Returns the size of frame `number`.
    pub fn of(&self, number: u64) -> u32 {
        self.shares[self.index(number)].0
    }

    /// Returns the bytes on the wire of `frames` frames, beginning with number `first`. After 2^64 - 1 the numbers
    /// continue with 0.
    pub fn bytes(&self, first: u64, frames: u64) -> u64 {
        let turn = self.turn.len() as u64;
        let rest = (0..frames % turn).map(|ahead| u64::from(self.of(first.wrapping_add(ahead))));
        frames / turn * self.turn_bytes() + rest.sum::<u64>()
    }

    /// Returns the mean size of a turn.
    pub fn mean(&self) -> f64 {
        self.turn_bytes() as f64 / self.turn.len() as f64
    }

    /// Returns the largest size.
    pub fn largest(&self) -> u32 {
        self.shares.iter().map(|share| share.0).max().unwrap_or(0)
    }

    /// Returns the smallest size.
    pub fn smallest(&self) -> u32 {
        self.shares.iter().map(|share| share.0).min().unwrap_or(0)
    }

    /// Returns every size with its share.
    pub fn shares(&self) -> &[(u32, u32)] {
        &self.shares
    }

    /// Returns whether all frames have the same size.
    pub fn is_one(&self) -> bool {
        self.shares.len() == 1
    }

    /// Returns the sizes of one turn, in order. Frame `number` has the size at `number % turn`.
    pub(super) fn turn(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.turn.iter().map(|&index| self.shares[usize::from(index)].0)
    }

    /// Returns the index into [`Sizes::shares`] of frame `number`'s size.
    pub(super) fn index(&self, number: u64) -> usize {
        usize::from(self.turn[(number % self.turn.len() as u64) as usize])
    }

    fn turn_bytes(&self) -> u64 {
        self.shares.iter().map(|&(size, share)| u64::from(size) * u64::from(share)).sum()
    }
}

/// Spreads sizes evenly over a turn: each frame gets the size that is furthest behind its share.
/// Source: the smooth weighted round robin of nginx.
fn spread(shares: &[(u32, u32)], frames: u32) -> Vec<u16> {
    let mut behind = vec![0i64; shares.len()];
    let mut next = || {
        for (behind, share) in behind.iter_mut().zip(shares) {
            *behind += i64::from(share.1);
        }
        let last = behind.len() - 1;
        let most = (0..=last).max_by_key(|&at| (behind[at], last - at)).unwrap_or(0);
        behind[most] -= i64::from(frames);
        most as u16
    };
    (0..frames).map(|_| next()).collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_every_size_as_often_as_asked_and_spread() {
        let sizes = Sizes::mix(&IMIX).unwrap();
        let turn: Vec<_> = sizes.turn().collect();
        assert_eq!(turn.len(), 12);
        for (size, share) in IMIX {
            assert_eq!(turn.iter().filter(|&&s| s == size).count() as u32, share, "{size}");
        }
        let longest = turn.chunk_by(|a, b| a == b).map(<[u32]>::len).max();
        assert!(longest <= Some(2), "{turn:?}");
        assert_eq!(Sizes::mix(&[(64, 14), (594, 8), (1518, 2)]), Ok(sizes.clone()));
        assert!((sizes.mean() - 4342.0 / 12.0).abs() < 1e-9);
        assert_eq!((sizes.smallest(), sizes.largest(), sizes.is_one()), (64, 1518, false));
    }

    #[test]
    fn bytes_are_the_sum_of_the_sizes_wherever_they_begin() {
        let sizes = Sizes::mix(&[(64, 3), (128, 1), (1500, 2)]).unwrap();
        for first in [0, 1, 5, 1 << 40] {
            for frames in [0, 1, 6, 7, 100] {
                let sum = (first..first + frames).map(|n| u64::from(sizes.of(n))).sum::<u64>();
                assert_eq!(sizes.bytes(first, frames), sum, "{first} {frames}");
            }
        }
        let one = Sizes::from(64);
        assert_eq!((one.bytes(7, 10), one.of(u64::MAX), one.is_one()), (640, 64, true));
    }

    #[test]
    fn a_mix_that_is_none_is_refused_in_words() {
        for (shares, word) in [
            (&[][..], "above 0"),
            (&[(64, 0)], "above 0"),
            (&[(64, 1), (64, 2)], "twice"),
            (&[(64, 4096), (65, 1)], "4096"),
            (&[(64, u32::MAX), (65, u32::MAX - 1)], "at most"),
        ] {
            assert!(Sizes::mix(shares).unwrap_err().contains(word), "{shares:?}");
        }
        assert_eq!(Sizes::mix(&[(64, 4095), (65, 1)]).unwrap().turn().len(), 4096);
    }
}
