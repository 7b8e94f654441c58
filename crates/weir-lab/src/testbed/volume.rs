//! Scales the amount of traffic that a test sends.

use std::env;

/// Returns `count`, or with `WEIR_REPEATED=1` a fifth of it, rounded up. tests/repeat.sh sets this variable. It runs
/// every test many times, and the number of runs matters there, not the length of one run.
///
/// Use this function only for amounts (frames, milliseconds of traffic, turns), and only if the assertions of the test
/// also hold for a fifth.
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
