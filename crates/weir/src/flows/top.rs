//! The flow records with the most bytes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use weir_flow::FlowRecord;

/// Keeps the records with the most bytes, at most `most`. Among records with equal bytes, the earlier are kept.
pub struct Top {
    most: usize,
    /// Ordered by bytes, then by arrival. The first is the next to be dropped.
    kept: BTreeMap<(u64, Reverse<u64>), FlowRecord>,
    taken: u64,
}

impl Top {
    pub fn new(most: usize) -> Top {
        Top { most, kept: BTreeMap::new(), taken: 0 }
    }

    pub fn take(&mut self, record: &FlowRecord) {
        let place = (record.bytes(), Reverse(self.taken));
        self.taken += 1;
        let is_full = self.kept.len() >= self.most;
        if is_full && self.kept.first_key_value().is_none_or(|(least, _)| place < *least) {
            return;
        }
        self.kept.insert(place, *record);
        if is_full {
            self.kept.pop_first();
        }
    }

    /// Returns the kept records, those with the most bytes first.
    pub fn records(&self) -> impl Iterator<Item = &FlowRecord> {
        self.kept.values().rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_flow::{EndReason, Totals};
    use weir_frame::flow::FlowKey;
    use weir_frame::headers::Addresses;

    #[test]
    fn those_with_most_bytes_stay_and_the_earlier_of_equal_ones() {
        let record = |first_ns, bytes| FlowRecord {
            key: FlowKey {
                addresses: Addresses::V4 { src: [1; 4].into(), dst: [2; 4].into() },
                src_port: 0,
                dst_port: 0,
                protocol: 1,
            },
            vlan: None,
            interface: 0,
            first_ns,
            last_ns: first_ns,
            forward: Totals { packets: 1, bytes, tcp_flags: 0 },
            reverse: Totals::default(),
            icmp: None,
            reason: EndReason::Idle,
        };
        let of = |most, bytes: &[u64]| {
            let mut top = Top::new(most);
            let records = bytes.iter().zip(0..).map(|(bytes, at)| record(at, *bytes));
            records.for_each(|record| top.take(&record));
            top.records().map(|record| (record.first_ns, record.bytes())).collect::<Vec<_>>()
        };
        assert_eq!(of(3, &[5, 9, 5, 1, 7, 5]), [(1, 9), (4, 7), (0, 5)]);
        assert_eq!(of(3, &[5, 9]), [(1, 9), (0, 5)]);
        assert_eq!(of(0, &[5, 9]), []);
    }
}
