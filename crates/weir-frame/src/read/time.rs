//! Converts the ticks of an interface's clock to nanoseconds.

/// The clock of an interface: `if_tsresol` and `if_tsoffset`.
///
/// Source: draft-ietf-opsawg-pcapng, section 4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    /// The `if_tsresol` byte: a negative power of ten, or of two if the top bit is set.
    pub(super) resolution: u8,
    /// Seconds to add to every timestamp.
    pub(super) offset_s: i64,
}

impl Default for Clock {
    /// Returns the default of the draft: microseconds since the epoch.
    fn default() -> Clock {
        Clock { resolution: 6, offset_s: 0 }
    }
}

const NS_PER_S: u128 = 1_000_000_000;

impl Clock {
    /// Returns the nanoseconds since the Unix epoch, fractions cut off, clamped to 0 and `u64::MAX`.
    pub(super) fn ns(self, ticks: u64) -> u64 {
        if self == (Clock { resolution: 9, offset_s: 0 }) {
            return ticks;
        }
        let ticks = u128::from(ticks);
        let exponent = u32::from(self.resolution & 0x7f);
        let ns = if self.resolution & 0x80 != 0 {
            // Below 2^64 * 10^9 < 2^94, and the exponent is at most 127.
            (ticks * NS_PER_S) >> exponent
        } else if exponent <= 9 {
            ticks * 10u128.pow(9 - exponent)
        } else {
            // The largest power that fits is 10^38; from 10^20 on the result is 0 anyway.
            10u128.checked_pow(exponent - 9).map_or(0, |divisor| ticks / divisor)
        };
        let ns = ns as i128 + i128::from(self.offset_s) * NS_PER_S as i128;
        ns.clamp(0, i128::from(u64::MAX)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ns(resolution: u8, offset_s: i64, ticks: u64) -> u64 {
        Clock { resolution, offset_s }.ns(ticks)
    }

    #[test]
    fn every_kind_of_resolution_gives_nanoseconds() {
        assert_eq!(ns(9, 0, 5), 5);
        assert_eq!(ns(6, 0, 5), 5_000);
        assert_eq!(ns(0, 0, 5), 5_000_000_000);
        assert_eq!(ns(12, 0, 5_999), 5);
        assert_eq!(ns(0x80 | 10, 0, 1536), 1_500_000_000);
        assert_eq!(ns(0x80, 0, 2), 2_000_000_000);
        assert_eq!(ns(6, 100, 5), 100_000_005_000);
        assert_eq!(ns(9, -2, 3_000_000_000), 1_000_000_000);
    }

    #[test]
    fn times_that_do_not_fit_stop_at_the_ends() {
        assert_eq!(ns(0, 0, u64::MAX), u64::MAX);
        assert_eq!(ns(9, i64::MAX, 0), u64::MAX);
        assert_eq!(ns(9, i64::MIN, u64::MAX), 0);
        assert_eq!(ns(127, 0, u64::MAX), 0);
        assert_eq!(ns(0xff, 0, u64::MAX), 0);
    }

    proptest! {
        #[test]
        fn no_clock_panics_or_runs_backwards(resolution: u8, offset_s: i64, a: u64, b: u64) {
            let (early, late) = (a.min(b), a.max(b));
            prop_assert!(ns(resolution, offset_s, early) <= ns(resolution, offset_s, late));
        }
    }
}
