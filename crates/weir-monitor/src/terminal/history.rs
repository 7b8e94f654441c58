//! The rate over the last minutes.

use std::collections::VecDeque;

use crate::view::View;

/// Number of views that are kept: five minutes with one view a second.
pub const HISTORY_VIEWS: usize = 300;

/// Rates of the last views.
#[derive(Clone, Debug, Default)]
pub struct History(VecDeque<Sample>);

/// The rate of one view, or the highest of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    number: u64,
    /// Bits per second.
    pub bits: f64,
    /// Whether a frame was lost.
    pub has_lost: bool,
}

impl History {
    /// Adds the rate of a view.
    pub fn push(&mut self, view: &View) {
        if self.0.back().is_some_and(|last| last.number >= view.number) {
            return;
        }
        if self.0.len() == HISTORY_VIEWS {
            self.0.pop_front();
        }
        let has_lost = view.lost_per_second > 0.0;
        let bits = view.rates.bits.max(0.0);
        self.0.push_back(Sample { number: view.number, bits, has_lost });
    }

    /// Returns at most `most` samples up to the view with the number `until`, the latest last. If there are more views,
    /// several are combined into one sample. The grouping does not change with time, so old samples keep their heights.
    pub fn samples(&self, most: usize, until: u64) -> Vec<Sample> {
        let views_each = HISTORY_VIEWS.div_ceil(most.max(1)) as u64;
        let mut samples: Vec<Sample> = Vec::new();
        for sample in self.0.iter().filter(|sample| sample.number <= until) {
            match samples.last_mut() {
                Some(last) if last.number / views_each == sample.number / views_each => {
                    last.bits = last.bits.max(sample.bits);
                    last.has_lost |= sample.has_lost;
                }
                _ => samples.push(*sample),
            }
        }
        samples.split_off(samples.len().saturating_sub(most))
    }

    /// Returns the highest rate up to the view with the number `until`, in bits per second.
    pub fn peak(&self, until: u64) -> f64 {
        let shown = self.0.iter().filter(|sample| sample.number <= until);
        shown.map(|sample| sample.bits).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(number: u64, bits: f64) -> View {
        let mut view = View { number, ..View::default() };
        view.rates.bits = bits;
        view
    }

    #[test]
    fn several_views_are_one_sample_and_the_highest_counts() {
        let mut history = History::default();
        for number in 1..=1000 {
            history.push(&view(number, number as f64));
        }
        history.push(&view(1000, 5000.0));
        assert_eq!((history.0.len(), history.peak(1000), history.peak(900)), (300, 1000.0, 900.0));
        let bits = |samples: Vec<Sample>| samples.iter().map(|s| s.bits).collect::<Vec<_>>();
        assert_eq!(bits(history.samples(300, 1000)).len(), 300);
        // Three views for each sample: views 999 and 1000 are in the last one.
        let samples = bits(history.samples(100, 1000));
        assert_eq!((samples.len(), samples[98], samples[99]), (100, 998.0, 1000.0));
        assert_eq!(history.samples(0, 1000), []);
    }

    #[test]
    fn a_lost_frame_marks_its_sample() {
        let mut history = History::default();
        for number in 1..10 {
            let lost_per_second = if number == 4 { 1.0 } else { 0.0 };
            history.push(&View { lost_per_second, ..view(number, f64::NAN) });
        }
        let samples = history.samples(60, 9);
        let marks: Vec<bool> = samples.iter().map(|sample| sample.has_lost).collect();
        assert_eq!((marks, samples[0].bits), (vec![true, false], 0.0));
    }
}
