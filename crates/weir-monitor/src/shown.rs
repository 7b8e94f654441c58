//! The flows of a view: those with the highest rates.

use std::cmp::Ordering;

use crate::limits::SHOWN_FLOWS_MAX;
use crate::view::FlowView;

/// The flows with the highest rates among all that were added.
#[derive(Default)]
pub struct Shown {
    /// At most twice [`SHOWN_FLOWS_MAX`] flows.
    flows: Vec<FlowView>,
    taken: u64,
}

impl Shown {
    pub fn take(&mut self, flow: FlowView) {
        self.taken += 1;
        self.flows.push(flow);
        if self.flows.len() >= 2 * SHOWN_FLOWS_MAX {
            self.flows.select_nth_unstable_by(SHOWN_FLOWS_MAX, higher_first);
            self.flows.truncate(SHOWN_FLOWS_MAX);
        }
    }

    /// Returns the number of added flows that are left out.
    pub fn left_out(&self) -> u64 {
        self.taken - self.flows.len().min(SHOWN_FLOWS_MAX) as u64
    }

    /// Returns the flows, the highest rate first.
    pub fn into_sorted(mut self) -> Vec<FlowView> {
        self.flows.sort_by(higher_first);
        self.flows.truncate(SHOWN_FLOWS_MAX);
        self.flows
    }
}

/// Orders by rate, the highest first, and flows with equal rates by bytes.
fn higher_first(a: &FlowView, b: &FlowView) -> Ordering {
    let bits = b.rates.bits.total_cmp(&a.rates.bits);
    bits.then_with(|| b.record.bytes().cmp(&a.record.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::flow;
    use crate::view::Rates;

    #[test]
    fn those_with_the_highest_rates_stay() {
        let mut shown = Shown::default();
        let count = 5 * SHOWN_FLOWS_MAX as u32;
        // 7919 is prime to it, so each rate comes once, in no order.
        for at in 0..count {
            let bits = f64::from(at * 7919 % count);
            shown.take(FlowView { record: flow(at as u16), rates: Rates { packets: 1.0, bits } });
        }
        assert_eq!(shown.left_out(), u64::from(count) - SHOWN_FLOWS_MAX as u64);
        let rates: Vec<f64> = shown.into_sorted().iter().map(|flow| flow.rates.bits).collect();
        let want: Vec<f64> = (0..count).rev().take(SHOWN_FLOWS_MAX).map(f64::from).collect();
        assert_eq!(rates, want);
    }
}
