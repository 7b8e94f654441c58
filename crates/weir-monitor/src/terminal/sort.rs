//! The order of flows.

use std::cmp::Ordering;

use weir_frame::headers::Addresses;

use crate::view::FlowView;

/// A column of the flow table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// Bits per second.
    #[default]
    Bits,
    /// Frames per second.
    Packets,
    /// Bytes of the flow so far.
    TotalBytes,
    /// Frames of the flow so far.
    TotalPackets,
    /// Time of the first frame.
    Start,
    /// Time from the first frame to the last one.
    Duration,
    /// The protocol's number.
    Protocol,
    /// Source address and port.
    Source,
    /// Destination address and port.
    Destination,
    /// Interface and VLAN.
    Interface,
}

impl Column {
    /// All columns, from left to right.
    pub const ALL: [Column; 10] = [
        Column::Bits,
        Column::Packets,
        Column::TotalBytes,
        Column::TotalPackets,
        Column::Start,
        Column::Duration,
        Column::Protocol,
        Column::Source,
        Column::Destination,
        Column::Interface,
    ];

    /// Returns the heading.
    pub const fn name(self) -> &'static str {
        match self {
            Column::Bits => "rate",
            Column::Packets => "packets/s",
            Column::TotalBytes => "bytes",
            Column::TotalPackets => "packets",
            Column::Start => "start",
            Column::Duration => "lasted",
            Column::Protocol => "proto",
            Column::Source => "source",
            Column::Destination => "destination",
            Column::Interface => "on",
        }
    }

    /// Returns whether the column's usual order is the largest first.
    pub const fn is_descending(self) -> bool {
        use Column::*;
        matches!(self, Bits | Packets | TotalBytes | TotalPackets | Start | Duration)
    }

    /// Returns the column `by` places to the right. The first column follows the last one.
    fn moved(self, by: isize) -> Column {
        let all = Column::ALL;
        let place = all.iter().position(|&column| column == self).unwrap_or_default();
        all[(place as isize + by).rem_euclid(all.len() as isize) as usize]
    }
}

/// An order of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    /// The column to sort by.
    pub column: Column,
    /// Whether the column's usual order is reversed.
    pub is_reversed: bool,
}

impl Sort {
    /// Returns the order by the next column, in its usual direction.
    pub fn next(self) -> Sort {
        Sort { column: self.column.moved(1), is_reversed: false }
    }

    /// Returns the order by the previous column, in its usual direction.
    pub fn previous(self) -> Sort {
        Sort { column: self.column.moved(-1), is_reversed: false }
    }

    /// Returns the reversed order.
    pub fn reversed(self) -> Sort {
        Sort { is_reversed: !self.is_reversed, ..self }
    }

    /// Returns whether the largest value is first.
    pub fn is_descending(self) -> bool {
        self.column.is_descending() != self.is_reversed
    }

    /// Compares two flows. Flows with equal values are ordered by their keys, so that they do not change places.
    pub fn compare(self, a: &FlowView, b: &FlowView) -> Ordering {
        let order = match self.column {
            Column::Bits => a.rates.bits.total_cmp(&b.rates.bits),
            Column::Packets => a.rates.packets.total_cmp(&b.rates.packets),
            Column::TotalBytes => a.record.bytes().cmp(&b.record.bytes()),
            Column::TotalPackets => a.record.packets().cmp(&b.record.packets()),
            Column::Start => a.record.first_ns.cmp(&b.record.first_ns),
            Column::Duration => duration(a).cmp(&duration(b)),
            Column::Protocol => a.record.key.protocol.cmp(&b.record.key.protocol),
            Column::Source => source(a).cmp(&source(b)),
            Column::Destination => destination(a).cmp(&destination(b)),
            Column::Interface => interface(a).cmp(&interface(b)),
        };
        let order = if self.is_descending() { order.reverse() } else { order };
        let key = |flow: &FlowView| (flow.record.key, flow.record.vlan, flow.record.interface);
        order.then_with(|| key(a).cmp(&key(b)))
    }
}

fn duration(flow: &FlowView) -> u64 {
    flow.record.last_ns.saturating_sub(flow.record.first_ns)
}

/// Returns a sort key: IPv4 before IPv6, then by the address as a number.
fn source(flow: &FlowView) -> (bool, u128, u16) {
    let key = &flow.record.key;
    match key.addresses {
        Addresses::V4 { src, .. } => (false, src.to_bits().into(), key.src_port),
        Addresses::V6 { src, .. } => (true, src.to_bits(), key.src_port),
    }
}

fn destination(flow: &FlowView) -> (bool, u128, u16) {
    let key = &flow.record.key;
    match key.addresses {
        Addresses::V4 { dst, .. } => (false, dst.to_bits().into(), key.dst_port),
        Addresses::V6 { dst, .. } => (true, dst.to_bits(), key.dst_port),
    }
}

fn interface(flow: &FlowView) -> (u32, Option<u16>) {
    (flow.record.interface, flow.record.vlan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::samples::{flow, flow_v6};

    fn order(sort: Sort, flows: &[FlowView]) -> Vec<u16> {
        let mut flows = flows.to_vec();
        flows.sort_by(|a, b| sort.compare(a, b));
        flows.iter().map(|flow| flow.record.key.src_port - 40_000).collect()
    }

    #[test]
    fn each_column_has_its_usual_order_and_the_other() {
        // Flow `n` of the samples has more of everything than flow `n - 1`, and began earlier.
        let flows = [flow(2), flow_v6(1), flow(10), flow(3)];
        for column in Column::ALL {
            let sort = Sort { column, is_reversed: false };
            let wanted = match column {
                Column::Source | Column::Destination => [2, 3, 10, 1],
                Column::Protocol => [2, 3, 10, 1],
                Column::Interface => [2, 3, 10, 1],
                Column::Start => [1, 2, 3, 10],
                _ => [10, 3, 2, 1],
            };
            assert_eq!(order(sort, &flows), wanted, "{column:?}");
            if matches!(column, Column::Bits | Column::Start | Column::Source) {
                let mut reversed = wanted;
                reversed.reverse();
                assert_eq!(order(sort.reversed(), &flows), reversed, "{column:?}");
            }
        }
    }

    #[test]
    fn columns_go_round() {
        let mut sort = Sort::default().reversed();
        assert_eq!(sort.previous().column, Column::Interface);
        for _ in Column::ALL {
            sort = sort.next();
        }
        assert_eq!(sort, Sort::default());
    }

    #[test]
    fn rates_that_are_no_numbers_have_an_order() {
        let mut flows = vec![flow(1), flow(2), flow(3)];
        flows[1].rates.bits = f64::NAN;
        assert_eq!(order(Sort::default(), &flows).len(), 3);
    }
}
