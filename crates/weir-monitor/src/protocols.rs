//! Traffic by protocol above IP.

use weir_flow::FlowRecord;

use crate::view::{Protocol, Rates, TrafficCounts};

/// Packets and bytes of IP, indexed by IANA's protocol number.
#[derive(Clone, Debug)]
pub struct Protocols(Box<[TrafficCounts; 256]>);

impl Default for Protocols {
    fn default() -> Protocols {
        Protocols(Box::new([TrafficCounts::default(); 256]))
    }
}

impl Protocols {
    /// Adds the counts of a flow record.
    pub fn take(&mut self, record: &FlowRecord) {
        let counts = TrafficCounts { packets: record.packets(), bytes: record.bytes() };
        self.count(record.key.protocol, counts);
    }

    pub(crate) fn count(&mut self, number: u8, counts: TrafficCounts) {
        let sum = &mut self.0[usize::from(number)];
        *sum = *sum + counts;
    }

    pub(crate) fn raise_to(&mut self, least: &Protocols) {
        for (counts, least) in self.0.iter_mut().zip(&least.0[..]) {
            counts.packets = counts.packets.max(least.packets);
            counts.bytes = counts.bytes.max(least.bytes);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|counts| counts.bytes).sum()
    }

    pub(crate) fn add(&mut self, more: &Protocols) {
        self.0.iter_mut().zip(&more.0[..]).for_each(|(sum, more)| *sum = *sum + *more);
    }

    /// Returns the protocols that have packets, the one with the most bytes first. Rates are averages since `before`.
    pub(crate) fn views(&self, before: &Protocols, seconds: f64) -> Vec<Protocol> {
        let numbered = self.0.iter().zip(&before.0[..]).zip(0..=u8::MAX);
        let views = numbered.filter(|((total, _), _)| total.packets > 0);
        let mut views: Vec<Protocol> = views
            .map(|((total, before), number)| Protocol {
                number,
                total: *total,
                rates: Rates::of(total.since(*before), seconds),
            })
            .collect();
        views.sort_by_key(|view| std::cmp::Reverse(view.total.bytes));
        views
    }
}
