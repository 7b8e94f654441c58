//! The IP layer: addresses, fragments, extension headers, and the first bytes of the layer above.
//!
//! Source: RFC 791 (IPv4), 8200 (IPv6), 4302 (AH), 6946 (atomic fragments), 2675 (jumbograms).

use super::{Ending, Layer};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Protocol numbers that Weir distinguishes. Source: IANA, "Assigned Internet Protocol Numbers".
pub mod protocol {
    #![allow(missing_docs, reason = "the names are the protocols")]
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    pub const IGMP: u8 = 2;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const DCCP: u8 = 33;
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const ESP: u8 = 50;
    pub const AH: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const OSPF: u8 = 89;
    pub const SCTP: u8 = 132;
    pub const UDP_LITE: u8 = 136;
}

pub use crate::limits::EXTENSIONS_MAX;

const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;

/// Source and destination of a packet. Both have the same IP version, as in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Addresses {
    V4 { src: Ipv4Addr, dst: Ipv4Addr },
    V6 { src: Ipv6Addr, dst: Ipv6Addr },
}

/// The part of a packet that a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The whole packet, or an atomic fragment (RFC 6946).
    Whole,
    /// The first fragment: it contains the headers above IP.
    First,
    /// A later fragment: it contains no headers above IP.
    Later {
        /// Offset of this part in the payload of the whole packet, in bytes; a multiple of 8.
        offset_bytes: u16,
    },
}

/// Contents of the first 4 bytes above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upper {
    /// TCP, UDP, UDP-Lite, SCTP or DCCP.
    Ports {
        /// Source port.
        src: u16,
        /// Destination port.
        dst: u16,
    },
    /// ICMP or ICMPv6.
    Icmp {
        /// Message type.
        kind: u8,
        /// Message code.
        code: u8,
    },
    /// Another protocol, a later fragment, or bytes that were not captured.
    Unknown,
}

/// The IP headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source and destination, from the IP header.
    pub addresses: Addresses,
    /// Protocol of the packet's payload: the last next-header value that was reached. This may be the number of an
    /// extension header if the parser stopped at one, or in a later fragment.
    pub protocol: u8,
    /// The part of the packet that this frame carries.
    pub fragment: Fragment,
    /// Ports, or ICMP type and code.
    pub upper: Upper,
    /// Offset of the packet's payload in the frame, at most the number of captured bytes.
    pub upper_at: u32,
    /// Offset in the frame at which the packet ends according to its length field, which may be beyond the captured
    /// bytes. `u32::MAX` if the length field is 0, as in an offload super-frame or a jumbogram, which extends to the
    /// end of the frame.
    pub packet_end: u32,
}

/// The state of the parser. It is passed by value: on the common path it stays in registers, and the few fields of
/// [`Ip`] are written once, at the end.
#[derive(Clone, Copy)]
struct Chain {
    protocol: u8,
    fragment: Fragment,
    at: u32,
    packet_end: u32,
}

/// Parses the IPv4 packet at `at`.
#[inline]
pub(super) fn walk_v4(frame: &[u8], at: usize) -> (Option<Ip>, Ending) {
    let packet = frame.get(at..).unwrap_or(&[]);
    let Some(head) = packet.first_chunk::<V4_BYTES>() else {
        return (None, short_or_not(packet, 4));
    };
    let header_bytes = usize::from(head[0] & 0x0f) * 4;
    if head[0] >> 4 != 4 || header_bytes < V4_BYTES {
        return (None, Ending::Malformed(Layer::Ip));
    }
    let total_bytes = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let fragment_word = u16::from_be_bytes([head[6], head[7]]);
    let mut chain = Chain {
        protocol: head[9],
        fragment: fragment((fragment_word & 0x1fff) * 8, fragment_word & 0x2000 != 0),
        at: (at + header_bytes).min(frame.len()) as u32,
        packet_end: if total_bytes == 0 { u32::MAX } else { (at + total_bytes) as u32 },
    };
    let mut stopped = None;
    if total_bytes != 0 && total_bytes < header_bytes {
        stopped = Some(Ending::Malformed(Layer::Ip));
    } else if packet.len() < header_bytes {
        stopped = Some(Ending::CutOff(Layer::Ip));
    } else if chain.protocol == protocol::AH {
        (chain, stopped) = walk_extensions(frame, chain, |next| next == protocol::AH);
    }
    let addresses = Addresses::V4 {
        src: Ipv4Addr::new(head[12], head[13], head[14], head[15]),
        dst: Ipv4Addr::new(head[16], head[17], head[18], head[19]),
    };
    finish(frame, addresses, chain, stopped)
}

/// Parses the IPv6 packet at `at`.
#[inline]
pub(super) fn walk_v6(frame: &[u8], at: usize) -> (Option<Ip>, Ending) {
    let packet = frame.get(at..).unwrap_or(&[]);
    let Some(head) = packet.first_chunk::<V6_BYTES>() else {
        return (None, short_or_not(packet, 6));
    };
    if head[0] >> 4 != 6 {
        return (None, Ending::Malformed(Layer::Ip));
    }
    let payload_bytes = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let payload_at = at + V6_BYTES;
    let mut chain = Chain {
        protocol: head[6],
        fragment: Fragment::Whole,
        at: payload_at as u32,
        packet_end: if payload_bytes == 0 { u32::MAX } else { (payload_at + payload_bytes) as u32 },
    };
    let mut stopped = None;
    if is_v6_extension(chain.protocol) {
        (chain, stopped) = walk_extensions(frame, chain, is_v6_extension);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&head[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    finish(frame, Addresses::V6 { src: address(8), dst: address(24) }, chain, stopped)
}

/// Returns the ending of a packet too short for its header: malformed if its version is already wrong, otherwise cut
/// off.
#[cold]
fn short_or_not(packet: &[u8], version: u8) -> Ending {
    match packet.first() {
        Some(first) if first >> 4 != version => Ending::Malformed(Layer::Ip),
        _ => Ending::CutOff(Layer::Ip),
    }
}

/// Returns the kind of a fragment: a first fragment has `more` at offset 0; without both it is a whole packet.
#[inline]
fn fragment(offset_bytes: u16, more: bool) -> Fragment {
    match (offset_bytes, more) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later { offset_bytes },
    }
}

/// Returns whether the parser reads on after this header. Mobility, HIP and SHIM6 headers have nothing above them in
/// practice, so the parser stops there.
#[inline]
fn is_v6_extension(next: u8) -> bool {
    use protocol::*;
    matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION_OPTIONS)
}

/// Steps over at most [`EXTENSIONS_MAX`] headers that `passes` accepts, until the bytes end.
#[inline(never)]
fn walk_extensions(
    frame: &[u8],
    mut chain: Chain,
    passes: fn(u8) -> bool,
) -> (Chain, Option<Ending>) {
    for _ in 0..EXTENSIONS_MAX {
        if !passes(chain.protocol) || matches!(chain.fragment, Fragment::Later { .. }) {
            return (chain, None);
        }
        // 8 bytes are the minimum length of every extension header, and contain all fields that are needed here.
        let kept = kept(frame, chain);
        let Some(head) = kept.first_chunk::<8>() else {
            return (chain, Some(missing(chain, 8, Layer::Extension)));
        };
        let header_bytes = match chain.protocol {
            protocol::FRAGMENT => 8,
            // Such a header is shorter than its own sequence number (RFC 4302, section 2.2).
            protocol::AH if head[1] == 0 => {
                return (chain, Some(Ending::Malformed(Layer::Extension)));
            }
            protocol::AH => (u32::from(head[1]) + 2) * 4,
            _ => (u32::from(head[1]) + 1) * 8,
        };
        if kept.len() < header_bytes as usize {
            return (chain, Some(missing(chain, header_bytes, Layer::Extension)));
        }
        if chain.protocol == protocol::FRAGMENT {
            let word = u16::from_be_bytes([head[2], head[3]]);
            chain.fragment = fragment(word & 0xfff8, word & 1 != 0);
        }
        chain.protocol = head[0];
        chain.at += header_bytes;
    }
    let more = passes(chain.protocol) && !matches!(chain.fragment, Fragment::Later { .. });
    (chain, more.then_some(Ending::TooDeep(Layer::Extension)))
}

/// Combines the results, and parses the layer above unless the parser has stopped before it.
#[inline]
fn finish(
    frame: &[u8],
    addresses: Addresses,
    chain: Chain,
    stopped: Option<Ending>,
) -> (Option<Ip>, Ending) {
    let (upper, ending) = match stopped {
        None => read_upper(frame, chain),
        Some(ending) => (Upper::Unknown, ending),
    };
    let Chain { protocol, fragment, at, packet_end } = chain;
    (Some(Ip { addresses, protocol, fragment, upper, upper_at: at, packet_end }), ending)
}

/// Reads the ports, or the ICMP type and code, if the protocol has them and they were captured.
#[inline]
fn read_upper(frame: &[u8], chain: Chain) -> (Upper, Ending) {
    use protocol::*;
    if matches!(chain.fragment, Fragment::Later { .. }) {
        return (Upper::Unknown, Ending::Whole);
    }
    let icmp = match chain.protocol {
        TCP | UDP | SCTP | DCCP | UDP_LITE => false,
        ICMP | ICMPV6 => true,
        _ => return (Upper::Unknown, Ending::Whole),
    };
    let Some([a, b, c, d]) = kept(frame, chain).first_chunk::<4>().copied() else {
        return (Upper::Unknown, missing(chain, 4, Layer::Upper));
    };
    let upper = if icmp {
        Upper::Icmp { kind: a, code: b }
    } else {
        Upper::Ports { src: u16::from_be_bytes([a, b]), dst: u16::from_be_bytes([c, d]) }
    };
    (upper, Ending::Whole)
}

/// Returns the packet's captured bytes from `chain.at` on: without Ethernet padding.
#[inline]
fn kept(frame: &[u8], chain: Chain) -> &[u8] {
    frame.get(chain.at as usize..frame.len().min(chain.packet_end as usize)).unwrap_or(&[])
}

/// Returns the ending for `need` bytes that are missing: either the frame was cut, or the packet itself is too short.
#[cold]
fn missing(chain: Chain, need: u32, layer: Layer) -> Ending {
    if chain.at + need <= chain.packet_end {
        Ending::CutOff(layer)
    } else {
        Ending::Malformed(layer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::FrameView;
    use super::*;

    fn ethernet(ether_type: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend(ether_type.to_be_bytes());
        frame.extend(packet);
        frame
    }

    fn v4(ihl_and_total: (u8, u16), fragment: u16, protocol: u8, rest: &[u8]) -> Vec<u8> {
        let (ihl, total) = ihl_and_total;
        let mut packet = vec![0x40 | ihl, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 1]);
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(rest);
        ethernet(0x0800, &packet)
    }

    fn v6(payload_bytes: u16, next: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(payload_bytes.to_be_bytes());
        packet.extend([next, 64]);
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        packet.extend(rest);
        ethernet(0x86dd, &packet)
    }

    fn walked(frame: &[u8]) -> (u8, Fragment, Upper, Ending) {
        let view = FrameView::parse(frame);
        let ip = view.ip().expect("addresses are there");
        (ip.protocol, ip.fragment, ip.upper, view.ending())
    }

    const PORTS: [u8; 8] = [0x10, 0x92, 0, 80, 0, 8, 0, 0];
    const FOUND: Upper = Upper::Ports { src: 4242, dst: 80 };

    #[test]
    fn v4_options_are_stepped_over() {
        let frame = v4((6, 32), 0, protocol::UDP, &[&[1, 1, 1, 0], &PORTS[..]].concat());
        assert_eq!(walked(&frame), (protocol::UDP, Fragment::Whole, FOUND, Ending::Whole));
    }

    #[test]
    fn later_fragments_have_no_ports() {
        let frame = v4((5, 28), 185, protocol::UDP, &PORTS);
        let later = Fragment::Later { offset_bytes: 1480 };
        assert_eq!(walked(&frame), (protocol::UDP, later, Upper::Unknown, Ending::Whole));
        let frame = v4((5, 28), 0x2000, protocol::UDP, &PORTS);
        assert_eq!(walked(&frame), (protocol::UDP, Fragment::First, FOUND, Ending::Whole));
    }

    #[test]
    fn ethernet_padding_is_not_read_as_ports() {
        let frame = v4((5, 20), 0, protocol::UDP, &[0xee; 26]);
        let (.., upper, ending) = walked(&frame);
        assert_eq!((upper, ending), (Upper::Unknown, Ending::Malformed(Layer::Upper)));
    }

    #[test]
    fn a_super_frame_with_length_zero_goes_to_the_end_of_the_frame() {
        assert_eq!(walked(&v4((5, 0), 0, protocol::TCP, &PORTS)).2, FOUND);
        assert_eq!(walked(&v6(0, protocol::TCP, &PORTS)).2, FOUND);
        assert_eq!(walked(&v6(0, protocol::TCP, &PORTS[..3])).3, Ending::CutOff(Layer::Upper));
    }

    #[test]
    fn a_header_that_contradicts_itself_keeps_its_addresses() {
        let (.., upper, ending) = walked(&v4((5, 19), 0, protocol::UDP, &PORTS));
        assert_eq!((upper, ending), (Upper::Unknown, Ending::Malformed(Layer::Ip)));
        let bad_ihl = v4((4, 28), 0, protocol::UDP, &PORTS);
        assert_eq!(FrameView::parse(&bad_ihl).ending(), Ending::Malformed(Layer::Ip));
        assert_eq!(FrameView::parse(&bad_ihl).ip(), None);
    }

    #[test]
    fn every_extension_header_is_stepped_over() {
        let mut rest = vec![protocol::ROUTING, 0, 1, 4, 0, 0, 0, 0]; // hop-by-hop, PadN
        rest.extend([protocol::DESTINATION_OPTIONS, 1, 4, 0]); // routing, 16 bytes
        rest.extend([0; 12]);
        rest.extend([protocol::FRAGMENT, 0, 1, 4, 0, 0, 0, 0]); // destination options
        rest.extend([protocol::AH, 0, 0, 1, 0, 0, 0, 9]); // fragment, first
        rest.extend([protocol::UDP, 4, 0, 0]); // AH, 24 bytes
        rest.extend([0; 20]);
        rest.extend(PORTS);
        let frame = v6(rest.len() as u16, protocol::HOP_BY_HOP, &rest);
        assert_eq!(walked(&frame), (protocol::UDP, Fragment::First, FOUND, Ending::Whole));
        for len in 54..frame.len() - 4 {
            let ending = FrameView::parse(&frame[..len]).ending();
            let ports_at = frame.len() - 8;
            let layer = if len < ports_at { Layer::Extension } else { Layer::Upper };
            assert_eq!(ending, Ending::CutOff(layer), "{len} bytes");
        }
    }

    #[test]
    fn an_atomic_fragment_is_a_whole_packet() {
        let rest = [&[protocol::UDP, 0, 0, 0, 0, 0, 0, 9], &PORTS[..]].concat();
        let frame = v6(16, protocol::FRAGMENT, &rest);
        assert_eq!(walked(&frame), (protocol::UDP, Fragment::Whole, FOUND, Ending::Whole));
    }

    #[test]
    fn an_endless_chain_of_extensions_ends() {
        let rest = [protocol::DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0].repeat(1000);
        let frame = v6(8000, protocol::DESTINATION_OPTIONS, &rest);
        assert_eq!(walked(&frame).3, Ending::TooDeep(Layer::Extension));
    }

    #[test]
    fn ah_in_v4_is_stepped_over_and_icmp_gives_its_type() {
        let mut rest = vec![protocol::ICMP, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2];
        rest.extend([8, 0, 0xff, 0xff]);
        let frame = v4((5, 36), 0, protocol::AH, &rest);
        assert_eq!(walked(&frame).2, Upper::Icmp { kind: 8, code: 0 });
    }
}
