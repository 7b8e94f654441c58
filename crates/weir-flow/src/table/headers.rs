//! The headers of a frame that a table uses.

use weir_frame::flow::FlowKey;
use weir_frame::headers::{ETHERNET_BYTES, Fragment, FrameView, Ip, Upper};

use super::{FlowTable, LinkLayer, Seen};
use crate::fast::plain_v4;
use crate::key::KeyWords;

/// The headers of a frame that belongs to a flow.
pub(super) struct Headers {
    pub key: KeyWords,
    pub ip_bytes: u32,
    pub tcp_flags: u8,
    pub icmp: u32,
}

impl FlowTable {
    /// Reads the headers of a frame. A frame that belongs to no flow is counted by its reason, and `None` is
    /// returned.
    #[inline(always)]
    pub(super) fn headers(&mut self, seen: &Seen<'_>) -> Option<Headers> {
        let is_ethernet = seen.link == LinkLayer::Ethernet;
        match plain_v4(seen.frame) {
            Some((key, length, tcp_flags)) if is_ethernet => {
                let ip_bytes = length.min(seen.wire_len.saturating_sub(ETHERNET_BYTES as u32));
                Some(Headers { key, ip_bytes, tcp_flags, icmp: 0 })
            }
            _ => self.walk(seen),
        }
    }

    #[inline(never)]
    fn walk(&mut self, seen: &Seen<'_>) -> Option<Headers> {
        let view = match seen.link {
            LinkLayer::Ethernet => FrameView::parse(seen.frame),
            LinkLayer::Ip => FrameView::parse_packet(seen.frame),
            LinkLayer::Other => {
                self.counters.not_flows.other_link_type += 1;
                return None;
            }
        };
        let Some(ip) = view.ip() else {
            self.counters.not_flows.count(&view);
            return None;
        };
        let vlan =
            if self.config.by_vlan { view.vlans().first().map(|tag| tag.id()) } else { None };
        let key = match ip.fragment {
            Fragment::Whole => FlowKey::of_ip(ip),
            _ => self.fragments.key(&view, ip, vlan, self.time.elapsed_ns, &mut self.counters),
        };
        Some(Headers {
            key: KeyWords::of(&key, vlan),
            ip_bytes: ip_bytes(&view, ip, seen),
            tcp_flags: view.tcp_flags().unwrap_or(0),
            icmp: match ip.upper {
                Upper::Icmp { kind, code } => u32::from_be_bytes([0, 1, kind, code]),
                Upper::Ports { .. } | Upper::Unknown => 0,
            },
        })
    }
}

/// Returns the length in the IP header, at most the bytes on the wire from the IP header on.
#[inline(always)]
fn ip_bytes(view: &FrameView<'_>, ip: &Ip, seen: &Seen<'_>) -> u32 {
    let packet_at = (seen.frame.len() - view.packet().len()) as u32;
    let on_wire = seen.wire_len.saturating_sub(packet_at);
    // If the header contains no length, `packet_end` is beyond the end of any frame.
    (ip.packet_end - packet_at).min(on_wire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlowConfig, FlowRecord, limits::FLOWS_MIN};
    use weir_frame::headers::protocol;

    /// An Ethernet frame of a packet: IPv4 of 10.0.0.1 to 10.0.0.9, UDP, with these IPv4 flags and offset.
    fn v4(fragment: u16, identification: u8) -> Vec<u8> {
        let [a, b] = fragment.to_be_bytes();
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 60, 0, identification, a, b, 64, protocol::UDP, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 9, 0, 53, 0x30, 0x39]);
        frame.resize(ETHERNET_BYTES + 60, 0);
        frame
    }

    fn v6(length: u8) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, length, protocol::TCP, 64]);
        frame.extend([[0x20; 16], [0x21; 16]].concat());
        frame.extend([0, 80, 0x30, 0x39]);
        frame.resize(ETHERNET_BYTES + 40 + usize::from(length), 2);
        frame
    }

    fn run(frames: &[Vec<u8>], link: LinkLayer) -> (Vec<FlowRecord>, FlowTable) {
        let config = FlowConfig { flows_max: FLOWS_MIN, biflow: true, ..FlowConfig::default() };
        let (mut table, mut ended) = (FlowTable::new(config).unwrap(), Vec::new());
        let seen = frames.iter().map(|frame| {
            let wire_len = frame.len() as u32;
            Seen { frame, link, wire_len, ts_ns: 1_000_000_000, interface: 0 }
        });
        table.add(seen, &mut |record| ended.push(record));
        table.finish(&mut |record| ended.push(record));
        ended.sort_by_key(|record| record.key);
        (ended, table)
    }

    #[test]
    fn packets_without_a_link_layer_are_the_flows_that_they_are_behind_ethernet() {
        let frames = [v4(0, 1), v4(0x2000, 2), v4(1, 2), v6(30), v6(20)];
        let packets = frames.clone().map(|frame| frame[ETHERNET_BYTES..].to_vec());
        let (expected, of_frames) = run(&frames, LinkLayer::Ethernet);
        let (ended, of_packets) = run(&packets, LinkLayer::Ip);
        assert_eq!((expected.len(), &ended), (2, &expected));
        assert_eq!(of_packets.counters(), of_frames.counters());
        assert_eq!(of_packets.counters().fragments_attributed, 1);
    }

    #[test]
    fn addresses_that_look_like_an_ethernet_header_mislead_nobody() {
        // IPv6 whose bytes 12 to 48 are those of a plain IPv4 packet behind Ethernet.
        let mut packet = v6(60)[ETHERNET_BYTES..].to_vec();
        packet[12..48].copy_from_slice(&v4(0, 1)[12..48]);
        assert!(plain_v4(&packet).is_some());
        let (ended, _) = run(&[packet], LinkLayer::Ip);
        assert_eq!((ended[0].key.protocol, ended[0].bytes()), (protocol::TCP, 100));
    }

    #[test]
    fn frames_of_other_link_layers_and_packets_that_are_not_ip_are_counted() {
        let frames = [v4(0, 1), Vec::new()];
        let (ended, table) = run(&frames, LinkLayer::Other);
        assert!(ended.is_empty());
        let counters = table.counters();
        assert_eq!((counters.frames, counters.not_flows.other_link_type), (2, 2));
        assert_eq!(counters.not_flows.total(), 2);
        // Its MAC address says version 0.
        let (_, table) = run(&frames, LinkLayer::Ip);
        let not_flows = table.counters().not_flows;
        assert_eq!((not_flows.malformed, not_flows.cut_off, not_flows.total()), (1, 1, 2));
    }
}
