//! Encodes flows as data records, and their templates.

use std::time::Duration;

use weir_flow::{FlowRecord, Octets};
use weir_frame::headers::Addresses;

use super::element::{self, Element};

/// The lowest id of a template for flows.
const FIRST_TEMPLATE: u16 = 256;
/// Seconds from 1900, the epoch of NTP, to 1970.
const NTP_EPOCH_S: u64 = 2_208_988_800;
/// biflowDirection: the initiator is the sender of the first frame that was seen. Source: RFC 5103 section 6.3.
const INITIATOR: u8 = 1;

/// The set of fields that a record has. Each layout has its own template, with a constant id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout(u8);

const V6: u8 = 1;
const VLAN: u8 = 2;
const ICMP: u8 = 4;
const BIFLOW: u8 = 8;
const LAYER2: u8 = 16;
const LAYOUTS: u8 = 32;

/// An element, and the function that appends its value.
struct Field(Element, fn(&FlowRecord, &mut Vec<u8>));

impl Layout {
    /// Returns the layout for this record. With `biflow`, the record has both directions; `octets` tells how bytes are
    /// counted.
    pub(super) fn of(record: &FlowRecord, biflow: bool, octets: Octets) -> Layout {
        let bits = [
            (V6, matches!(record.key.addresses, Addresses::V6 { .. })),
            (VLAN, record.vlan.is_some()),
            (ICMP, record.icmp.is_some()),
            (BIFLOW, biflow),
            (LAYER2, octets == Octets::Wire),
        ];
        Layout(bits.iter().map(|&(bit, is_set)| if is_set { bit } else { 0 }).sum())
    }

    pub(super) const fn template_id(self) -> u16 {
        FIRST_TEMPLATE + self.0 as u16
    }

    /// Appends the layout's template record. Source: RFC 7011 section 3.4.1.
    pub(super) fn put_template(self, out: &mut Vec<u8>) {
        out.extend(self.template_id().to_be_bytes());
        out.extend((self.fields().count() as u16).to_be_bytes());
        self.fields().for_each(|Field(element, _)| element.put(out));
    }

    /// Appends a data record of this layout.
    pub(super) fn put_record(self, record: &FlowRecord, out: &mut Vec<u8>) {
        self.fields().for_each(|Field(_, put)| put(record, out));
    }

    // The order matters to nfdump: it takes the reverse TCP flags for the flags of the flow unless they come later.
    fn fields(self) -> impl Iterator<Item = &'static Field> {
        let has = |bit| self.0 & bit != 0;
        let groups: [(bool, &'static [Field]); 11] = [
            (!has(V6), ADDRESSES_V4),
            (has(V6), ADDRESSES_V6),
            (has(BIFLOW), REVERSE),
            (has(BIFLOW) && !has(LAYER2), REVERSE_OCTETS),
            (has(BIFLOW) && has(LAYER2), REVERSE_LAYER2_OCTETS),
            (true, COMMON),
            (!has(LAYER2), OCTETS),
            (has(LAYER2), LAYER2_OCTETS),
            (has(VLAN), VLAN_ID),
            (has(ICMP), if has(V6) { ICMP_V6 } else { ICMP_V4 }),
            (true, TIMES),
        ];
        groups.into_iter().filter(|(is_there, _)| *is_there).flat_map(|(_, fields)| fields)
    }
}

/// A set of layouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layouts(u32);

impl Layouts {
    pub(super) fn insert(&mut self, layout: Layout) {
        self.0 |= 1 << layout.0;
    }

    /// Returns the layouts that are not in `others`.
    pub(super) fn without(self, others: Layouts) -> impl Iterator<Item = Layout> {
        let bits = self.0 & !others.0;
        (0..LAYOUTS).filter(move |bit| bits >> bit & 1 != 0).map(Layout)
    }
}

const ADDRESSES_V4: &[Field] = &[
    Field(element::SRC_V4, |record, out| {
        if let Addresses::V4 { src, .. } = record.key.addresses {
            out.extend(src.octets());
        }
    }),
    Field(element::DST_V4, |record, out| {
        if let Addresses::V4 { dst, .. } = record.key.addresses {
            out.extend(dst.octets());
        }
    }),
];
const ADDRESSES_V6: &[Field] = &[
    Field(element::SRC_V6, |record, out| {
        if let Addresses::V6 { src, .. } = record.key.addresses {
            out.extend(src.octets());
        }
    }),
    Field(element::DST_V6, |record, out| {
        if let Addresses::V6 { dst, .. } = record.key.addresses {
            out.extend(dst.octets());
        }
    }),
];
const COMMON: &[Field] = &[
    Field(element::SRC_PORT, |record, out| out.extend(record.key.src_port.to_be_bytes())),
    Field(element::DST_PORT, |record, out| out.extend(record.key.dst_port.to_be_bytes())),
    Field(element::PROTOCOL, |record, out| out.push(record.key.protocol)),
    Field(element::TCP_FLAGS, |record, out| out.extend([0, record.forward.tcp_flags])),
    Field(element::PACKETS, |record, out| out.extend(record.forward.packets.to_be_bytes())),
    Field(element::INGRESS_INTERFACE, |record, out| {
        out.extend(interface_number(record.interface).to_be_bytes());
    }),
    Field(element::END_REASON, |record, out| out.push(record.reason as u8)),
];
const OCTETS: &[Field] = &[Field(element::OCTETS, put_octets)];
const LAYER2_OCTETS: &[Field] = &[Field(element::LAYER2_OCTETS, put_octets)];
const REVERSE: &[Field] = &[
    Field(element::TCP_FLAGS.reversed(), |record, out| out.extend([0, record.reverse.tcp_flags])),
    Field(element::PACKETS.reversed(), |record, out| {
        out.extend(record.reverse.packets.to_be_bytes());
    }),
    Field(element::BIFLOW_DIRECTION, |_, out| out.push(INITIATOR)),
];
const REVERSE_OCTETS: &[Field] = &[Field(element::OCTETS.reversed(), put_reverse_octets)];
const REVERSE_LAYER2_OCTETS: &[Field] =
    &[Field(element::LAYER2_OCTETS.reversed(), put_reverse_octets)];
const VLAN_ID: &[Field] =
    &[Field(element::VLAN, |record, out| out.extend(record.vlan.unwrap_or(0).to_be_bytes()))];
const ICMP_V4: &[Field] = &[Field(element::ICMP_V4, put_icmp)];
const ICMP_V6: &[Field] = &[Field(element::ICMP_V6, put_icmp)];
// Both units: nfdump 1.7.1 (Debian 12) reads only milliseconds, while Weir has nanoseconds.
const TIMES: &[Field] = &[
    Field(element::START_MS, |record, out| out.extend((record.first_ns / 1_000_000).to_be_bytes())),
    Field(element::END_MS, |record, out| out.extend((record.last_ns / 1_000_000).to_be_bytes())),
    Field(element::START_NS, |record, out| out.extend(ntp(record.first_ns))),
    Field(element::END_NS, |record, out| out.extend(ntp(record.last_ns))),
];

fn put_octets(record: &FlowRecord, out: &mut Vec<u8>) {
    out.extend(record.forward.bytes.to_be_bytes());
}

fn put_reverse_octets(record: &FlowRecord, out: &mut Vec<u8>) {
    out.extend(record.reverse.bytes.to_be_bytes());
}

fn put_icmp(record: &FlowRecord, out: &mut Vec<u8>) {
    let (kind, code) = record.icmp.unwrap_or_default();
    out.extend([kind, code]);
}

/// Returns the number of an interface for collectors. They use ifIndex of SNMP, in which 0 means no interface, so the
/// numbers begin at 1.
pub(super) const fn interface_number(interface: u32) -> u32 {
    interface.saturating_add(1)
}

/// Encodes a time as dateTimeNanoseconds: seconds since 1900, modulo 2^32, and a fraction in units of 2^-32 s. Source:
/// RFC 7011 section 6.1.10.
///
/// The fraction is rounded up. Most readers round it down, and so get the original nanosecond.
fn ntp(ns: u64) -> [u8; 8] {
    let time = Duration::from_nanos(ns);
    let parts = (u64::from(time.subsec_nanos()) << 32).div_ceil(1_000_000_000);
    let seconds = time.as_secs().wrapping_add(NTP_EPOCH_S) as u32;
    (u64::from(seconds) << 32 | parts).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nanosecond_is_read_back_by_rounding_down_and_to_the_nearest() {
        for nanos in (0..1_000_000_000).step_by(9_973).chain([1, 999_999_999]) {
            let bytes = ntp(1_700_000_000_000_000_000 + nanos);
            let parts = u64::from(u32::from_be_bytes(bytes[4..].try_into().unwrap()));
            assert_eq!((parts * 1_000_000_000) >> 32, nanos);
            assert_eq!((parts * 1_000_000_000 + (1 << 31)) >> 32, nanos);
        }
        // 1 January 1970, and the first second of NTP's next era: 7 February 2036, 06:28:16.
        assert_eq!(ntp(0), [0x83, 0xaa, 0x7e, 0x80, 0, 0, 0, 0]);
        assert_eq!(ntp(2_085_978_496_000_000_000), [0; 8]);
    }

    #[test]
    fn layouts_are_told_apart_and_counted_once() {
        let mut used = Layouts::default();
        let (first, last) = (Layout(0), Layout(LAYOUTS - 1));
        used.insert(first);
        used.insert(last);
        used.insert(last);
        assert_eq!(used.without(Layouts::default()).collect::<Vec<_>>(), [first, last]);
        let mut known = Layouts::default();
        known.insert(last);
        assert_eq!(used.without(known).collect::<Vec<_>>(), [first]);
        assert_eq!((first.template_id(), last.template_id()), (256, 287));
    }
}
