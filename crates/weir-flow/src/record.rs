//! The record of a flow that has ended.

use std::collections::HashMap;

use weir_frame::flow::FlowKey;

/// The record of a flow that has ended, or of a part of a flow that continues ([`EndReason::Active`]).
///
/// | field | IPFIX information element |
/// |---|---|
/// | `vlan` | vlanId 58 |
/// | `interface` | ingressInterface 10, as the feed numbers it |
/// | `first_ns`, `last_ns` | flowStartNanoseconds 156, flowEndNanoseconds 157 |
/// | `reason` | flowEndReason 136 |
/// | `icmp` | icmpTypeCodeIPv4 32, icmpTypeCodeIPv6 139 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Addresses, ports and protocol, in the direction of the first frame.
    pub key: FlowKey,
    /// The outermost VLAN id of the first frame, if the VLAN is part of the flow key and the frame has a tag.
    pub vlan: Option<u16>,
    /// The interface of the first frame.
    pub interface: u32,
    /// Earliest timestamp of a frame: nanoseconds since the Unix epoch.
    pub first_ns: u64,
    /// Latest timestamp of a frame: nanoseconds since the Unix epoch.
    pub last_ns: u64,
    /// Counts of the direction of `key`. The opposite direction is a flow of its own, unless biflows are configured.
    pub forward: Totals,
    /// Counts of the opposite direction of a biflow; zero otherwise. Source: RFC 5103.
    pub reverse: Totals,
    /// Type and code of the first frame, if it was ICMP or ICMPv6.
    pub icmp: Option<(u8, u8)>,
    /// The reason for the end of the flow.
    pub reason: EndReason,
}

/// Counts of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// packetDeltaCount (2): frames; each fragment counts as one.
    pub packets: u64,
    /// octetDeltaCount (1), or layer2OctetDeltaCount (352): see [`Octets`](crate::Octets).
    pub bytes: u64,
    /// tcpControlBits (6), CWR to FIN, of all packets combined with OR.
    pub tcp_flags: u8,
}

impl Totals {
    fn add(&mut self, more: Totals) {
        self.packets += more.packets;
        self.bytes += more.bytes;
        self.tcp_flags |= more.tcp_flags;
    }
}

/// The reason for the end of a flow. The numbers are those of flowEndReason (IPFIX 136).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum EndReason {
    /// No frame came during the idle time-out.
    Idle = 1,
    /// The active time-out has passed: the flow may continue in another record.
    Active = 2,
    /// The table was finished.
    Forced = 4,
    /// Another flow needed the slot.
    LackOfResources = 5,
}

impl EndReason {
    /// Returns the name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EndReason::Idle => "idle",
            EndReason::Active => "active",
            EndReason::Forced => "forced",
            EndReason::LackOfResources => "evicted",
        }
    }
}

impl FlowRecord {
    /// Returns the packets of both directions.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.forward.packets + self.reverse.packets
    }

    /// Returns the bytes of both directions.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.forward.bytes + self.reverse.bytes
    }

    /// Merges another record of the same flow into this one. Direction, interface and ICMP type are those of the
    /// record that began earlier, the reason is that of the record that ended later.
    ///
    /// `more.key` must be this key or its reverse: the function only checks whether the two keys are equal.
    pub fn absorb(&mut self, more: &FlowRecord) {
        let (mut early, late) =
            if more.first_ns < self.first_ns { (*more, *self) } else { (*self, *more) };
        let same_direction = early.key == late.key;
        let (forward, reverse) = if same_direction {
            (late.forward, late.reverse)
        } else {
            (late.reverse, late.forward)
        };
        early.forward.add(forward);
        early.reverse.add(reverse);
        if late.last_ns >= early.last_ns {
            (early.last_ns, early.reason) = (late.last_ns, late.reason);
        }
        *self = early;
    }
}

/// Merges the records that have the same key and VLAN: those of a flow that came over several rings, and the parts of
/// a flow that active time-outs created. With `biflow`, a key and its reverse are the same. The result is in the
/// order of the first record of each flow.
///
/// With `by_interface`, records of different interfaces are not merged.
#[must_use]
pub fn merge(
    records: impl IntoIterator<Item = FlowRecord>,
    biflow: bool,
    by_interface: bool,
) -> Vec<FlowRecord> {
    let mut merged: Vec<FlowRecord> = Vec::new();
    let mut places = HashMap::new();
    for record in records {
        let reversed = record.key.reversed();
        let key = if biflow { record.key.min(reversed) } else { record.key };
        let interface = if by_interface { record.interface } else { 0 };
        match places.entry((key, record.vlan, interface)) {
            std::collections::hash_map::Entry::Occupied(place) => {
                let place: usize = *place.get();
                merged[place].absorb(&record);
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(record);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_frame::headers::Addresses;

    fn record(first_ns: u64, packets: u64) -> FlowRecord {
        let addresses = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        FlowRecord {
            key: FlowKey { addresses, src_port: 1000, dst_port: 80, protocol: 6 },
            vlan: None,
            interface: packets as u32,
            first_ns,
            last_ns: first_ns + 10,
            forward: Totals { packets, bytes: packets * 40, tcp_flags: packets as u8 },
            reverse: Totals::default(),
            icmp: None,
            reason: EndReason::Forced,
        }
    }

    fn reversed(record: FlowRecord) -> FlowRecord {
        FlowRecord { key: record.key.reversed(), ..record }
    }

    #[test]
    fn a_biflow_of_two_rings_is_one_record_of_who_sent_first() {
        let later = FlowRecord { reason: EndReason::Idle, ..record(7, 2) };
        let merged = merge([later, reversed(record(5, 1))], true, false);
        let want = FlowRecord { reverse: later.forward, last_ns: 17, ..reversed(record(5, 1)) };
        assert_eq!(merged, [FlowRecord { reason: EndReason::Idle, ..want }]);
    }

    #[test]
    fn what_differs_stays_apart() {
        let tagged = FlowRecord { vlan: Some(7), ..record(5, 1) };
        assert_eq!(merge([record(5, 1), reversed(record(5, 1)), tagged], false, false).len(), 3);
        assert_eq!(merge([record(5, 1), record(5, 2)], false, true).len(), 2);
        let both = merge([record(5, 1), record(5, 2)], false, false);
        assert_eq!(
            (both.len(), both[0].packets(), both[0].bytes(), both[0].forward.tcp_flags),
            (1, 3, 120, 3)
        );
    }
}
