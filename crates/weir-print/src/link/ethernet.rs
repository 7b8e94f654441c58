//! Prints Ethernet II and VLAN tags, and selects the next header by ethertype. Source: IEEE 802.1Q-2022, IEEE's
//! ethertype registry.

use weir_frame::headers::{VlanTag, ether_type};

use super::llc;
use crate::bytes::Bytes;
use crate::line::Line;
use crate::net::{arp, lldp};
use crate::next::Next;
use crate::text::Text;

/// Ethertype of an Ethernet frame in a tunnel (Transparent Ethernet Bridging).
pub const BRIDGED: u16 = 0x6558;
const PPPOE_SESSION: u16 = 0x8864;
const LLDP: u16 = 0x88cc;
const MPLS: [u16; 2] = [0x8847, 0x8848];
const REVERSE_ARP: u16 = 0x8035;
/// The drop eligible indicator (DEI) of a tag: the frame may be dropped first during congestion.
const DROP_ELIGIBLE: u16 = 0x1000;

pub fn write<'a>(line: &mut Line<'_>, frame: Bytes<'a>) -> Option<Next<'a>> {
    let Some(head) = frame.head::<14>() else {
        line.cut_off("ether");
        return None;
    };
    let kind = u16::from_be_bytes([head[12], head[13]]);
    if line.options.link {
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *head;
        line.out.mac([s0, s1, s2, s3, s4, s5]);
        line.out.put(" > ");
        line.out.mac([d0, d1, d2, d3, d4, d5]);
        write_kind(line, kind);
        line.length(frame.len());
        line.out.put(": ");
    }
    Some(Next::TypeOrLength(kind, frame.after(14)))
}

/// Returns the length of the link-layer headers, with tags and 802.2.
pub fn header_bytes(frame: &[u8]) -> usize {
    let frame = Bytes::new(frame, frame.len());
    let mut at = 14;
    loop {
        match frame.be16(at - 2) {
            Some(ether_type::VLAN | ether_type::SERVICE_VLAN | ether_type::OLD_QINQ) => at += 4,
            Some(length) if length < ether_type::LOWEST => {
                return at + llc::header_bytes(frame.after(at));
            }
            _ => return at,
        }
    }
}

fn write_kind(line: &mut Line<'_>, kind: u16) {
    if kind < ether_type::LOWEST {
        line.out.put(", 802.3");
        return;
    }
    line.out.put(", ");
    write_named_kind(line, kind);
}

/// Writes the ethertype, `ethertype IPv4 (0x0800)`, after which the next header leaves out its name.
pub fn write_named_kind(line: &mut Line<'_>, kind: u16) {
    line.out.put("ethertype ");
    line.out.put(name(kind).unwrap_or("Unknown"));
    line.out.put(" (");
    line.out.hex(kind, 4);
    line.out.put(")");
    line.named();
}

/// Writes or returns the header that follows an ethertype or an 802.3 length.
pub fn write_payload<'a>(line: &mut Line<'_>, kind: u16, rest: Bytes<'a>) -> Option<Next<'a>> {
    if kind < ether_type::LOWEST {
        return llc::write(line, rest.up_to(usize::from(kind)));
    }
    write_ethertype(line, kind, rest)
}

/// Writes or returns the header that follows an ethertype; `kind` is never a length.
pub fn write_ethertype<'a>(line: &mut Line<'_>, kind: u16, rest: Bytes<'a>) -> Option<Next<'a>> {
    match kind {
        ether_type::IPV4 => return Some(Next::V4(rest)),
        ether_type::IPV6 => return Some(Next::V6(rest)),
        ether_type::VLAN | ether_type::SERVICE_VLAN | ether_type::OLD_QINQ => {
            return write_tag(line, kind, rest);
        }
        PPPOE_SESSION => return write_pppoe(line, rest),
        BRIDGED => return Some(Next::Ethernet(rest)),
        kind if MPLS.contains(&kind) => return Some(Next::Mpls(rest)),
        ether_type::ARP => arp::write(line, "ARP", rest),
        REVERSE_ARP => arp::write(line, "RARP", rest),
        LLDP => lldp::write(line, rest),
        other => {
            match name(other) {
                Some(name) => {
                    line.begin(name);
                }
                None => {
                    line.begin(if other < ether_type::LOWEST { "protocol " } else { "ethertype " });
                    line.out.hex(other, 4);
                }
            }
            line.length(rest.len());
        }
    }
    None
}

/// Writes a tag: `vlan 100, p 3, `
fn write_tag<'a>(line: &mut Line<'_>, tpid: u16, rest: Bytes<'a>) -> Option<Next<'a>> {
    let Some((tci, next)) = rest.be16(0).zip(rest.be16(2)) else {
        line.cut_off("vlan");
        return None;
    };
    let tag = VlanTag { tpid, tci };
    line.begin("");
    line.out.put("vlan ");
    line.out.dec(tag.id());
    line.out.put(", p ");
    line.out.dec(tag.priority());
    if tci & DROP_ELIGIBLE != 0 {
        line.out.put(", DEI");
    }
    if line.options.link && next >= ether_type::LOWEST {
        write_kind(line, next);
    }
    line.out.put(", ");
    Some(Next::TypeOrLength(next, rest.after(4)))
}

fn write_pppoe<'a>(line: &mut Line<'_>, rest: Bytes<'a>) -> Option<Next<'a>> {
    let Some((session, len)) = rest.be16(2).zip(rest.be16(4)) else {
        line.cut_off("pppoe");
        return None;
    };
    line.begin("PPPoE ");
    line.out.put("[ses ");
    line.out.hex(session, 1);
    line.out.put("] ");
    Some(Next::Ppp(rest.after(6).up_to(usize::from(len))))
}

/// Returns the name of an ethertype, if it is common on real links.
fn name(kind: u16) -> Option<&'static str> {
    Some(match kind {
        ether_type::IPV4 => "IPv4",
        ether_type::IPV6 => "IPv6",
        ether_type::ARP => "ARP",
        ether_type::VLAN => "802.1Q",
        ether_type::SERVICE_VLAN => "802.1Q-QinQ",
        ether_type::OLD_QINQ => "802.1Q-9100",
        BRIDGED => "TEB",
        PPPOE_SESSION => "PPPoE S",
        LLDP => "LLDP",
        0x0842 => "Wake on LAN",
        0x8035 => "RARP",
        0x8808 => "MPCP",
        0x8809 => "Slow Protocols",
        0x8847 => "MPLS unicast",
        0x8848 => "MPLS multicast",
        0x8863 => "PPPoE D",
        0x888e => "EAPOL",
        0x88e5 => "802.1AE MACsec",
        0x88f7 => "PTP",
        0x9000 => "Loopback",
        _ => return None,
    })
}
