//! The addresses with the highest rates.

use std::collections::HashMap;
use std::net::IpAddr;

use weir_flow::FlowRecord;
use weir_frame::headers::Addresses;

use crate::limits::{SHOWN_TALKERS_MAX, TALKERS_MAX};
use crate::view::{Rates, Talker};

/// Addresses of flows, with the sums of their rates.
#[derive(Default)]
pub struct Talkers(HashMap<IpAddr, Talker>);

impl Talkers {
    /// Adds a flow with the rates of its two directions.
    pub fn take(&mut self, flow: &FlowRecord, [forward, reverse]: [Rates; 2]) {
        let [src, dst]: [IpAddr; 2] = match flow.key.addresses {
            Addresses::V4 { src, dst } => [src.into(), dst.into()],
            Addresses::V6 { src, dst } => [src.into(), dst.into()],
        };
        self.add(src, forward, reverse);
        // A flow from an address to itself is counted once.
        if dst != src {
            self.add(dst, reverse, forward);
        }
    }

    fn add(&mut self, address: IpAddr, sent: Rates, received: Rates) {
        if self.0.len() >= TALKERS_MAX && !self.0.contains_key(&address) {
            return;
        }
        let none = Talker { address, flows: 0, sent: Rates::default(), received: Rates::default() };
        let talker = self.0.entry(address).or_insert(none);
        talker.flows += 1;
        talker.sent = talker.sent + sent;
        talker.received = talker.received + received;
    }

    /// Returns the talkers, the highest rate first. Equal rates are ordered by number of flows.
    pub fn into_sorted(self) -> Vec<Talker> {
        let mut talkers: Vec<Talker> = self.0.into_values().collect();
        talkers.sort_by(|a, b| {
            let bits = |talker: &Talker| (talker.sent + talker.received).bits;
            let rates = bits(b).total_cmp(&bits(a));
            rates.then_with(|| b.flows.cmp(&a.flows)).then_with(|| a.address.cmp(&b.address))
        });
        talkers.truncate(SHOWN_TALKERS_MAX);
        talkers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::flow;

    #[test]
    fn what_one_sends_the_other_receives() {
        let rates = |packets| Rates { packets, bits: packets * 480.0 };
        let mut talkers = Talkers::default();
        talkers.take(&flow(1), [rates(2.0), rates(1.0)]);
        talkers.take(&flow(2), [rates(4.0), rates(0.0)]);
        let shown = talkers.into_sorted();
        let told = |talker: &Talker| {
            (talker.address.to_string(), talker.flows, talker.sent.packets, talker.received.packets)
        };
        let shown: Vec<_> = shown.iter().map(told).collect();
        assert_eq!(shown, [("10.0.0.1".into(), 2, 6.0, 1.0), ("10.0.0.2".into(), 2, 1.0, 6.0)]);
    }
}
