//! Amount of traffic that a test sends.

use std::env;

/// `count`, or a fifth of it, rounded up, with `WEIR_REPEATED=1`: tests/repeat.sh runs every test
/// many times, and the number of runs matters there, not the length of one.
///
/// Use it only for amounts (frames, milliseconds of traffic, turns), and only where the assertions
/// of the test hold for a fifth as well.
pub fn volume(count: u64) -> u64 {
    let is_repeated = env::var_os("WEIR_REPEATED").is_some_and(|value| value == "1");
    volume_of(count, is_repeated)
}

fn volume_of(count: u64, is_repeated: bool) -> u64 {
    if is_repeated { count.div_ceil(5) } else { count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_test_does_a_fifth_and_never_nothing() {
        assert_eq!([0, 1, 12, 500_000].map(|count| volume_of(count, false)), [0, 1, 12, 500_000]);
        assert_eq!([0, 1, 12, 500_000].map(|count| volume_of(count, true)), [0, 1, 3, 100_000]);
    }
}
