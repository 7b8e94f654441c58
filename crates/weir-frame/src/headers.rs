//! The headers of a frame, parsed once.
//!
//! The parser reads Ethernet II, a stack of VLAN tags, IPv4 or IPv6 with extension headers, then the ports or the
//! ICMP type. [`FrameView::parse`] accepts any bytes: of a frame that is cut by the snaplen, or that contradicts
//! itself, it returns the headers found before that point, and [`Ending`] tells where and why the parser stopped.
//! Inner packets of tunnels are payload.
//!
//! Source: IEEE 802.1Q-2022 (tags), RFC 791 and 8200 (IP); see [`ip`] for the rest.

pub mod ip;

pub use ip::{Addresses, Fragment, Ip, Upper, protocol};

/// Ethertypes that Weir distinguishes. Source: IEEE and IANA registries.
pub mod ether_type {
    #![allow(missing_docs, reason = "the names are the protocols")]
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const IPV6: u16 = 0x86dd;
    /// Customer tag, IEEE 802.1Q.
    pub const VLAN: u16 = 0x8100;
    /// Service tag, IEEE 802.1ad ("QinQ").
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// Outer tag that equipment older than 802.1ad writes.
    pub const OLD_QINQ: u16 = 0x9100;
    /// Below this the field is the length of an IEEE 802.3 frame, not a type.
    pub const LOWEST: u16 = 0x0600;
}

/// Bytes of an Ethernet II header without tags.
pub const ETHERNET_BYTES: usize = 14;
pub use crate::limits::VLANS_MAX;

/// A VLAN tag as it is in the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanTag {
    /// The kind of the tag: one of the VLAN values in [`ether_type`].
    pub tpid: u16,
    /// Priority, drop-eligible bit and id, in 3, 1 and 12 bits.
    pub tci: u16,
}

impl VlanTag {
    /// Returns the VLAN id; 0 means a priority tag without a VLAN.
    #[must_use]
    pub const fn id(self) -> u16 {
        self.tci & 0x0fff
    }

    /// Returns the priority (PCP), 0 to 7.
    #[must_use]
    pub const fn priority(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// A layer of the headers, in the order of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// MAC addresses and ethertype.
    Ethernet,
    /// The VLAN tags.
    Vlan,
    /// The IP header with its IPv4 options.
    Ip,
    /// IPv6 extension headers, and AH in IPv4.
    Extension,
    /// The first bytes above IP: ports, or ICMP type and code.
    Upper,
}

/// The reason why the parser stopped. Only headers count: a frame with complete headers and a payload that is cut off
/// is [`Ending::Whole`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All headers that the parser knows are complete, or it reached a header that it does not know.
    Whole,
    /// The captured bytes end inside this layer.
    CutOff(Layer),
    /// A length or version in this layer, or in the one before it, is invalid.
    Malformed(Layer),
    /// There are more VLAN tags or extension headers than the parser reads.
    TooDeep(Layer),
}

/// The headers of a frame, parsed once. Borrows the frame; allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct FrameView<'a> {
    frame: &'a [u8],
    vlans: [VlanTag; VLANS_MAX],
    vlan_count: u8,
    ending: Ending,
    ether_type: Option<u16>,
    network_at: u32,
    ip: Option<Ip>,
}

impl<'a> FrameView<'a> {
    /// Parses the headers of `frame`: link-layer bytes as received, without FCS, cut off anywhere.
    ///
    /// Never fails and never panics. The work is bounded by [`VLANS_MAX`] and [`ip::EXTENSIONS_MAX`], whatever the
    /// bytes are.
    #[must_use]
    #[inline]
    pub fn parse(frame: &'a [u8]) -> FrameView<'a> {
        let Some(head) = frame.first_chunk::<ETHERNET_BYTES>() else {
            return FrameView::without_header(frame);
        };
        let mut link = Link {
            vlans: [VlanTag::default(); VLANS_MAX],
            vlan_count: 0,
            ether_type: Some(u16::from_be_bytes([head[12], head[13]])),
            at: ETHERNET_BYTES,
            ending: Ending::Whole,
        };
        if link.ether_type.is_some_and(is_vlan) {
            link = walk_vlans(frame, link);
        }
        let (ip, ending) = match link.ether_type {
            Some(ether_type::IPV4) => ip::walk_v4(frame, link.at),
            Some(ether_type::IPV6) => ip::walk_v6(frame, link.at),
            _ => (None, link.ending),
        };
        let Link { vlans, vlan_count, ether_type, at, .. } = link;
        FrameView { frame, vlans, vlan_count, ending, ether_type, network_at: at as u32, ip }
    }

    /// Parses the headers of a packet that has no link layer, as on `tun` devices: IPv4 or IPv6, according to its
    /// version field.
    ///
    /// The [`ether_type`](Self::ether_type) is the one that an Ethernet header would have; there are no MAC addresses
    /// and no tags. The work is bounded as in [`parse`](Self::parse). Source: LINKTYPE_RAW,
    /// draft-ietf-opsawg-pcaplinktype.
    #[must_use]
    pub fn parse_packet(packet: &'a [u8]) -> FrameView<'a> {
        let (ether_type, (ip, ending)) = match packet.first().map(|byte| byte >> 4) {
            Some(4) => (Some(ether_type::IPV4), ip::walk_v4(packet, 0)),
            Some(6) => (Some(ether_type::IPV6), ip::walk_v6(packet, 0)),
            Some(_) => (None, (None, Ending::Malformed(Layer::Ip))),
            None => (None, (None, Ending::CutOff(Layer::Ip))),
        };
        let vlans = [VlanTag::default(); VLANS_MAX];
        FrameView { frame: packet, vlans, vlan_count: 0, ending, ether_type, network_at: 0, ip }
    }

    #[cold]
    fn without_header(frame: &'a [u8]) -> FrameView<'a> {
        FrameView {
            frame,
            vlans: [VlanTag::default(); VLANS_MAX],
            vlan_count: 0,
            ending: Ending::CutOff(Layer::Ethernet),
            ether_type: None,
            network_at: frame.len() as u32,
            ip: None,
        }
    }

    /// Returns the whole frame, as given to [`parse`](Self::parse).
    #[must_use]
    pub fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// Returns the destination MAC address, if its 6 bytes were captured.
    #[must_use]
    pub fn dst_mac(&self) -> Option<[u8; 6]> {
        self.link_header().first_chunk().copied()
    }

    /// Returns the source MAC address, if its 6 bytes were captured.
    #[must_use]
    pub fn src_mac(&self) -> Option<[u8; 6]> {
        self.link_header().get(6..)?.first_chunk().copied()
    }

    fn link_header(&self) -> &'a [u8] {
        self.frame.get(..self.network_at as usize).unwrap_or(self.frame)
    }

    /// Returns the VLAN tags, outermost first.
    #[must_use]
    pub fn vlans(&self) -> &[VlanTag] {
        &self.vlans[..usize::from(self.vlan_count)]
    }

    /// Returns the ethertype after all tags, or the 802.3 length if the value is below [`ether_type::LOWEST`]. `None`
    /// if it is cut off.
    #[must_use]
    pub fn ether_type(&self) -> Option<u16> {
        self.ether_type
    }

    /// Returns the bytes after the ethertype: the captured bytes of the packet, including any padding.
    #[must_use]
    pub fn packet(&self) -> &'a [u8] {
        self.frame.get(self.network_at as usize..).unwrap_or(&[])
    }

    /// Returns the IP headers, if the fixed part with both addresses was captured.
    #[must_use]
    #[inline]
    pub fn ip(&self) -> Option<&Ip> {
        self.ip.as_ref()
    }

    /// Returns the captured bytes after IP and its extension headers, without Ethernet padding. For a later fragment
    /// this is its part of the payload.
    #[must_use]
    pub fn upper(&self) -> &'a [u8] {
        let Some(ip) = &self.ip else { return &[] };
        let end = self.frame.len().min(ip.packet_end as usize);
        self.frame.get(ip.upper_at as usize..end).unwrap_or(&[])
    }

    /// Returns the TCP control bits, CWR to FIN, if the frame is an unfragmented packet or first fragment that
    /// contains them.
    #[must_use]
    #[inline]
    pub fn tcp_flags(&self) -> Option<u8> {
        let ip = self.ip.as_ref()?;
        let walked = matches!(ip.upper, Upper::Ports { .. }) && ip.protocol == protocol::TCP;
        if walked { self.upper().get(13).copied() } else { None }
    }

    /// Returns where the parser stopped, and why.
    #[must_use]
    pub fn ending(&self) -> Ending {
        self.ending
    }
}

/// The state of the parser in the link layer.
struct Link {
    vlans: [VlanTag; VLANS_MAX],
    vlan_count: u8,
    ether_type: Option<u16>,
    at: usize,
    ending: Ending,
}

/// Parses the VLAN tags. Sets `ether_type` to the value after the last tag, or to `None` if that is cut off.
#[inline(never)]
fn walk_vlans(frame: &[u8], mut link: Link) -> Link {
    while let Some(tpid) = link.ether_type.filter(|t| is_vlan(*t)) {
        let count = usize::from(link.vlan_count);
        if count == VLANS_MAX {
            link.ending = Ending::TooDeep(Layer::Vlan);
            return link;
        }
        if let Some(tci) = be16(frame, link.at) {
            link.vlans[count] = VlanTag { tpid, tci };
            link.vlan_count += 1;
        }
        link.ether_type = be16(frame, link.at + 2);
        link.at += 4;
    }
    if link.ether_type.is_none() {
        link.at = frame.len();
        link.ending = Ending::CutOff(Layer::Vlan);
    }
    link
}

#[inline]
const fn is_vlan(ether_type: u16) -> bool {
    matches!(ether_type, ether_type::VLAN | ether_type::SERVICE_VLAN | ether_type::OLD_QINQ)
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    /// TCP SYN to port 80 inside VLAN 100 inside service VLAN 7, as bytes on the wire.
    #[rustfmt::skip]
    const QINQ_SYN: [u8; 62] = [
        0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x88, 0xa8, 0, 7, 0x81, 0, 0x60, 100, 0x08, 0,
        0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0x26, 0xcd, 10, 0, 0, 1, 10, 0, 0, 2,
        0x10, 0x92, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0,
    ];

    #[test]
    fn a_real_frame_gives_every_layer() {
        let view = FrameView::parse(&QINQ_SYN);
        assert_eq!(view.dst_mac(), Some([2, 0, 0, 0, 0, 2]));
        assert_eq!(view.src_mac(), Some([2, 0, 0, 0, 0, 1]));
        let tags: Vec<_> = view.vlans().iter().map(|v| (v.tpid, v.id(), v.priority())).collect();
        assert_eq!(tags, [(0x88a8, 7, 0), (0x8100, 100, 3)]);
        assert_eq!(view.ether_type(), Some(ether_type::IPV4));
        let ip = view.ip().unwrap();
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(ip.addresses, Addresses::V4 { src, dst });
        assert_eq!(ip.upper, Upper::Ports { src: 4242, dst: 80 });
        assert_eq!(view.tcp_flags(), Some(2));
        assert_eq!(view.upper().len(), 20);
        assert_eq!(view.ending(), Ending::Whole);
    }

    #[test]
    fn a_frame_cut_anywhere_says_in_which_layer() {
        for (len, layer, tags) in [
            (0, Layer::Ethernet, 0),
            (13, Layer::Ethernet, 0),
            (14, Layer::Vlan, 0),
            (16, Layer::Vlan, 1),
            (21, Layer::Vlan, 2),
            (22, Layer::Ip, 2),
            (41, Layer::Ip, 2),
            (42, Layer::Upper, 2),
            (45, Layer::Upper, 2),
        ] {
            let view = FrameView::parse(&QINQ_SYN[..len]);
            assert_eq!(view.ending(), Ending::CutOff(layer), "{len} bytes");
            assert_eq!(view.vlans().len(), tags, "{len} bytes");
        }
        assert_eq!(FrameView::parse(&QINQ_SYN[..46]).ending(), Ending::Whole);
        assert_eq!(FrameView::parse(&QINQ_SYN[..46]).tcp_flags(), None);
    }

    #[test]
    fn a_fifth_tag_ends_the_walk() {
        let mut frame = QINQ_SYN[..12].to_vec();
        frame.extend([0x81, 0, 0, 5].repeat(1000));
        let view = FrameView::parse(&frame);
        assert_eq!(view.vlans().len(), VLANS_MAX);
        assert_eq!(view.ending(), Ending::TooDeep(Layer::Vlan));
    }

    #[test]
    fn not_ip_is_whole_and_has_a_packet() {
        let mut frame = QINQ_SYN[..12].to_vec();
        frame.extend([0x88, 0xcc, 1, 2, 3]); // LLDP
        let view = FrameView::parse(&frame);
        assert_eq!((view.ending(), view.ip()), (Ending::Whole, None));
        assert_eq!((view.ether_type(), view.packet()), (Some(0x88cc), &[1, 2, 3][..]));
    }

    #[test]
    fn a_packet_without_a_link_layer_has_what_it_has_behind_ethernet() {
        let (whole, packet) =
            (FrameView::parse(&QINQ_SYN), FrameView::parse_packet(&QINQ_SYN[22..]));
        assert_eq!(packet.ending(), Ending::Whole);
        assert_eq!(packet.ether_type(), Some(ether_type::IPV4));
        assert_eq!((packet.packet(), packet.upper()), (whole.packet(), whole.upper()));
        assert_eq!(packet.tcp_flags(), Some(2));
        let addresses = |view: &FrameView<'_>| view.ip().map(|ip| (ip.addresses, ip.upper));
        assert_eq!(addresses(&packet), addresses(&whole));
        assert_eq!((packet.src_mac(), packet.dst_mac(), packet.vlans()), (None, None, &[][..]));
        assert_eq!(FrameView::parse_packet(&[]).ending(), Ending::CutOff(Layer::Ip));
        assert_eq!(FrameView::parse_packet(&[0x50; 40]).ending(), Ending::Malformed(Layer::Ip));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn hostile_bytes_never_panic(
            mut frame in proptest::collection::vec(any::<u8>(), 0..200),
            kind in proptest::sample::select(vec![0x0800u16, 0x86dd, 0x8100, 0x88a8, 0x9100]),
        ) {
            if frame.len() >= 15 {
                frame[12..14].copy_from_slice(&kind.to_be_bytes());
                match kind {
                    ether_type::IPV4 => frame[14] = 0x40 | frame[14] & 0x0f,
                    ether_type::IPV6 => frame[14] = 0x60,
                    _ => {}
                }
            }
            let view = FrameView::parse(&frame);
            let _ = (view.packet(), view.upper(), view.tcp_flags(), view.src_mac());
            let behind = FrameView::parse_packet(frame.get(14..).unwrap_or(&frame));
            let _ = (behind.packet(), behind.upper(), behind.tcp_flags(), behind.src_mac());
            for view in [view, behind] {
                if let Some(ip) = view.ip() {
                    prop_assert!(ip.upper_at as usize <= view.frame().len());
                }
            }
        }
    }
}
