//! One line of text about a frame: what `weir capture --print` shows.
//!
//! ```text
//! 10.0.0.1:4242 > 10.0.0.2:80 tcp, 74 bytes
//! vlan 7.100 10.0.0.1 > 10.0.0.2 icmp 8/0, 102 bytes
//! 10.0.0.1 > 10.0.0.2 udp fragment at 1480, 1518 bytes
//! 02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff arp who-has 10.0.0.2 tell 10.0.0.1, 60 bytes
//! 02:00:00:00:00:01 > 01:80:c2:00:00:0e lldp, 112 bytes
//! 10.0.0.1 > 10.0.0.2 tcp [cut off in layer 4], 74 bytes, kept 36
//! ```

use crate::flow::FlowKey;
use crate::headers::{Ending, Fragment, FrameView, Ip, Layer, Upper, ether_type};
use std::fmt::{self, Display, Formatter};
use std::net::Ipv4Addr;

/// Text for `frame`, which had `wire_len` bytes on the wire, without FCS. Any bytes will do.
///
/// Nothing is allocated until the caller formats it: `writeln!(out, "{}", one_line(frame, len))`.
#[must_use]
pub fn one_line(frame: &[u8], wire_len: u32) -> OneLine<'_> {
    OneLine { view: FrameView::parse(frame), wire_len }
}

/// A frame that can be displayed, from [`one_line`].
#[derive(Clone, Copy, Debug)]
pub struct OneLine<'a> {
    view: FrameView<'a>,
    wire_len: u32,
}

impl Display for OneLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let view = &self.view;
        write_vlans(f, view)?;
        match view.ip() {
            Some(ip) => write_ip(f, ip)?,
            None => write_link(f, view)?,
        }
        write_ending(f, view.ending())?;
        write!(f, ", {} bytes", self.wire_len)?;
        let kept = view.frame().len();
        if kept != self.wire_len as usize { write!(f, ", kept {kept}") } else { Ok(()) }
    }
}

fn write_vlans(f: &mut Formatter<'_>, view: &FrameView<'_>) -> fmt::Result {
    for (i, tag) in view.vlans().iter().enumerate() {
        write!(f, "{}{}", if i == 0 { "vlan " } else { "." }, tag.id())?;
    }
    if view.vlans().is_empty() { Ok(()) } else { f.write_str(" ") }
}

fn write_ip(f: &mut Formatter<'_>, ip: &Ip) -> fmt::Result {
    write!(f, "{}", FlowKey::of_ip(ip))?;
    if let Upper::Icmp { kind, code } = ip.upper {
        write!(f, " {kind}/{code}")?;
    }
    match ip.fragment {
        Fragment::Whole => Ok(()),
        Fragment::First => f.write_str(" fragment at 0"),
        Fragment::Later { offset_bytes } => write!(f, " fragment at {offset_bytes}"),
    }
}

/// MAC addresses and what little is known of a frame that has no IP header, or too little of one.
fn write_link(f: &mut Formatter<'_>, view: &FrameView<'_>) -> fmt::Result {
    let Some(dst) = view.dst_mac() else { return f.write_str("no addresses") };
    match view.src_mac() {
        Some(src) => write!(f, "{} > {}", Mac(src), Mac(dst))?,
        None => write!(f, "? > {}", Mac(dst))?,
    }
    match view.ether_type() {
        None => Ok(()),
        Some(ether_type::ARP) => match Arp::parse(view.packet()) {
            Some(arp) => write!(f, " {arp}"),
            None => f.write_str(" arp"),
        },
        Some(length) if length < ether_type::LOWEST => write!(f, " 802.3 length {length}"),
        Some(other) => match ether_type_name(other) {
            Some(name) => write!(f, " {name}"),
            None => write!(f, " ethertype {other:#06x}"),
        },
    }
}

fn write_ending(f: &mut Formatter<'_>, ending: Ending) -> fmt::Result {
    let name = |layer| match layer {
        Layer::Ethernet => "ethernet",
        Layer::Vlan => "vlan",
        Layer::Ip => "ip",
        Layer::Extension => "ip extension",
        Layer::Upper => "layer 4",
    };
    match ending {
        Ending::Whole => Ok(()),
        Ending::CutOff(layer) => write!(f, " [cut off in {}]", name(layer)),
        Ending::Malformed(layer) => write!(f, " [malformed {}]", name(layer)),
        Ending::TooDeep(layer) => write!(f, " [too many {} headers]", name(layer)),
    }
}

/// Short names of ethertypes that are met on real links. Source: IEEE registry.
const fn ether_type_name(number: u16) -> Option<&'static str> {
    Some(match number {
        ether_type::IPV4 => "ipv4",
        ether_type::IPV6 => "ipv6",
        ether_type::VLAN | ether_type::SERVICE_VLAN | ether_type::OLD_QINQ => "vlan",
        0x0842 => "wake-on-lan",
        0x8035 => "rarp",
        0x8808 => "pause",
        0x8809 => "lacp",
        0x8847 | 0x8848 => "mpls",
        0x8863 | 0x8864 => "pppoe",
        0x888e => "eapol",
        0x88cc => "lldp",
        0x88e5 => "macsec",
        0x88f7 => "ptp",
        _ => return None,
    })
}

/// A MAC address as `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// An ARP packet for IPv4 over Ethernet. Source: RFC 826.
struct Arp {
    operation: u16,
    sender_mac: Mac,
    sender: Ipv4Addr,
    target: Ipv4Addr,
}

impl Arp {
    /// `None` for other address kinds, and where not all 28 bytes are there.
    fn parse(packet: &[u8]) -> Option<Arp> {
        const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
        let bytes = packet.first_chunk::<28>()?;
        if !bytes.starts_with(&ETHERNET_IPV4) {
            return None;
        }
        let address =
            |at: usize| Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]);
        Some(Arp {
            operation: u16::from_be_bytes([bytes[6], bytes[7]]),
            sender_mac: Mac(bytes[8..].first_chunk().copied()?),
            sender: address(14),
            target: address(24),
        })
    }
}

impl Display for Arp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.operation {
            1 => write!(f, "arp who-has {} tell {}", self.target, self.sender),
            2 => write!(f, "arp {} is-at {}", self.sender, self.sender_mac),
            other => write!(f, "arp operation {other} from {}", self.sender),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(frame: &[u8]) -> String {
        one_line(frame, frame.len() as u32).to_string()
    }

    const MACS: [u8; 12] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1];

    #[rustfmt::skip]
    const ARP_REQUEST: [u8; 30] = [
        8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2,
    ];

    #[rustfmt::skip]
    const PING: [u8; 30] = [
        8, 0, 0x45, 0, 0, 28, 0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        8, 0, 0xf7, 0xfe, 0, 0, 0, 1,
    ];

    #[test]
    fn arp_says_who_asks() {
        let mut frame = [&MACS[..], &ARP_REQUEST[..]].concat();
        assert_eq!(
            line(&frame),
            "02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff arp who-has 10.0.0.2 tell 10.0.0.1, 42 bytes"
        );
        frame[21] = 2;
        assert_eq!(
            line(&frame),
            "02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff arp 10.0.0.1 is-at 02:00:00:00:00:01, 42 bytes"
        );
        assert_eq!(line(&frame[..20]), "02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff arp, 20 bytes");
    }

    #[test]
    fn vlans_flow_and_lengths_are_shown() {
        let tags = [0x88, 0xa8, 0, 7, 0x81, 0, 0, 100];
        let frame = [&MACS[..], &tags, &PING].concat();
        assert_eq!(line(&frame), "vlan 7.100 10.0.0.1 > 10.0.0.2 icmp 8/0, 50 bytes");
        assert_eq!(
            one_line(&frame[..42], 50).to_string(),
            "vlan 7.100 10.0.0.1 > 10.0.0.2 icmp [cut off in layer 4], 50 bytes, kept 42"
        );
        let fragment = [&MACS[..], &PING[..8], &[0x20, 185], &PING[10..]].concat();
        assert_eq!(line(&fragment), "10.0.0.1 > 10.0.0.2 icmp fragment at 1480, 42 bytes");
    }

    #[test]
    fn frames_without_ip_show_their_type() {
        for (ether_type, text) in [
            ([0x88, 0xcc], "lldp"),
            ([0x12, 0x34], "ethertype 0x1234"),
            ([0, 38], "802.3 length 38"),
        ] {
            let frame = [&MACS[..], &ether_type, &[0; 46]].concat();
            let macs = "02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff";
            assert_eq!(line(&frame), format!("{macs} {text}, 60 bytes"));
        }
    }

    #[test]
    fn the_shortest_frames_still_have_a_line() {
        assert_eq!(line(&[]), "no addresses [cut off in ethernet], 0 bytes");
        assert_eq!(line(&MACS[..7]), "? > ff:ff:ff:ff:ff:ff [cut off in ethernet], 7 bytes");
    }

    proptest! {
        #[test]
        fn any_bytes_make_one_line(
            frame in proptest::collection::vec(any::<u8>(), 0..100),
            kind in proptest::sample::select(vec![0x0800u16, 0x0806, 0x86dd, 0x8100, 0]),
        ) {
            let mut frame = frame;
            if frame.len() >= 14 && kind != 0 {
                frame[12..14].copy_from_slice(&kind.to_be_bytes());
            }
            let text = line(&frame);
            prop_assert!(!text.contains('\n') && text.len() < 200);
        }
    }
}
