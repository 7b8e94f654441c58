//! Summary of a measurement over several rounds.

use serde::Serialize;

/// Median and extremes of several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value, or the mean of the middle two.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// Number of rounds.
    pub rounds: usize,
}

impl Spread {
    /// Summarizes values. `None` if there are none, or if one of them is NaN.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() || values.iter().any(|value| value.is_nan()) {
            return None;
        }
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        let (min, max) = (values[0], values[values.len() - 1]);
        Some(Spread { median, min, max, rounds: values.len() })
    }
}

/// Returns the ratios of two measurements, paired by round. Only rounds that both have are used, so that a machine that
/// slows down half way slows down both sides of each ratio.
#[must_use]
pub fn paired(values: &[(u32, f64)], baseline: &[(u32, f64)]) -> Option<Spread> {
    let of_round = |round| baseline.iter().find(|(other, _)| *other == round);
    let ratios = values.iter().filter_map(|&(round, value)| {
        let &(_, base) = of_round(round)?;
        (base > 0.0).then_some(value / base)
    });
    Spread::of(ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_middle_two() {
        let spread = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 3 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([7.0]).unwrap().median, 7.0);
    }

    #[test]
    fn nothing_and_not_a_number_have_no_spread() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([1.0, f64::NAN]), None);
    }

    #[test]
    fn only_rounds_that_both_have_are_compared() {
        let ours = [(0, 4.0), (1, 10.0), (2, 6.0)];
        let theirs = [(0, 2.0), (2, 2.0), (3, 1.0)];
        let ratio = paired(&ours, &theirs).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.rounds), (2.5, 2.0, 3.0, 2));
        assert_eq!(paired(&ours, &[(0, 0.0)]), None);
        assert_eq!(paired(&ours, &[]), None);
    }
}
