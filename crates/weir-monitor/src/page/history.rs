//! Rates of the last five minutes, for a page that is opened while the monitor runs.

use std::collections::VecDeque;

use serde::Serialize;

use super::json::{finite, milliseconds, protocol_text};
use crate::view::View;

/// Number of views that are kept: five minutes with one view a second.
const MOMENTS_MAX: usize = 300;
/// The most protocols that are kept of a view. The page computes the rate of all others from the view's total rate.
const PROTOCOLS_MAX: usize = 8;

/// Rates of the last views.
#[derive(Default)]
pub struct History {
    last: u64,
    moments: VecDeque<Moment>,
}

/// The rates of one view. Field names are short because there are many of them.
#[derive(Serialize)]
struct Moment {
    /// Milliseconds since the Unix epoch.
    at_ms: u64,
    packets: f64,
    bits: f64,
    lost: f64,
    /// Names and bits per second.
    protocols: Vec<(String, f64)>,
}

impl History {
    /// Adds this view, unless it was added before.
    pub fn see(&mut self, view: &View) {
        if view.number == self.last {
            return;
        }
        self.last = view.number;
        if self.moments.len() == MOMENTS_MAX {
            self.moments.pop_front();
        }
        let protocols = view
            .protocols
            .iter()
            .take(PROTOCOLS_MAX)
            .map(|protocol| (protocol_text(protocol.number), finite(protocol.rates.bits)));
        self.moments.push_back(Moment {
            at_ms: milliseconds(view.at_ns),
            packets: finite(view.rates.packets),
            bits: finite(view.rates.bits),
            lost: finite(view.lost_per_second),
            protocols: protocols.collect(),
        });
    }

    /// Returns all views as a JSON array, the oldest first.
    pub fn text(&self) -> String {
        // Numbers and strings can always be serialized.
        serde_json::to_string(&self.moments).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Protocol, Rates};

    #[test]
    fn the_last_views_are_remembered_once_each() {
        let mut history = History::default();
        assert_eq!(history.text(), "[]");
        for number in 1..=MOMENTS_MAX as u64 + 7 {
            let rates = Rates { packets: number as f64, bits: f64::NAN };
            let protocols = vec![
                Protocol {
                    number: 17,
                    rates: Rates { bits: 8.0, ..rates },
                    ..Protocol::default()
                };
                20
            ];
            let view =
                View { number, at_ns: number * 1_000_000, rates, protocols, ..View::default() };
            history.see(&view);
            history.see(&view);
        }
        let all: serde_json::Value = serde_json::from_str(&history.text()).expect("JSON");
        let all = all.as_array().expect("an array");
        assert_eq!((all.len(), &all[0]["at_ms"]), (MOMENTS_MAX, &8.into()));
        assert_eq!(all[0]["bits"], 0.0);
        assert_eq!(all[0]["protocols"][7], serde_json::json!(["udp", 8.0]));
        assert_eq!(all[0]["protocols"].as_array().map(Vec::len), Some(PROTOCOLS_MAX));
    }
}
