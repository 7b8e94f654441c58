//! Prints the protocols above IP.

mod geneve;
mod gre;
mod icmp;
mod icmpv6;
mod igmp;
mod tcp;
mod udp;
mod vxlan;

use weir_frame::headers::protocol as number;

use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::{Above, Next};
use crate::text::Text;

/// Writes the addresses, and then the header of `protocol`.
pub fn write<'a>(line: &mut Line<'_>, protocol: u8, above: Above<'a>) -> Option<Next<'a>> {
    match protocol {
        number::TCP => {
            tcp::write(line, above);
            return None;
        }
        number::UDP => return udp::write(line, above),
        number::SCTP | number::DCCP | number::UDP_LITE => {
            if let Some((src, dst)) = above.payload.be16(0).zip(above.payload.be16(2)) {
                above.write_ports(line, src, dst);
                line.out.put(name(protocol).unwrap_or_default());
                line.length(above.payload.len());
                return None;
            }
        }
        _ => {}
    }
    above.write_hosts(line);
    let payload = above.payload;
    match protocol {
        IP_IN_IP => return Some(Next::V4(payload)),
        number::IPV6 => return Some(Next::V6(payload)),
        number::GRE => return gre::write(line, payload),
        number::ICMP => icmp::write(line, payload),
        number::ICMPV6 => icmpv6::write(line, payload),
        number::IGMP => igmp::write(line, payload),
        number::ESP => write_esp(line, payload),
        other => {
            write_plain(line.out, other);
            line.length(payload.len());
        }
    }
    None
}

/// Writes the name of a protocol, or its number: `ospf`, `ip-proto-200`.
pub fn write_plain(out: &mut Vec<u8>, protocol: u8) {
    match name(protocol) {
        Some(name) => out.put(name),
        None => {
            out.put("ip-proto-");
            out.dec(protocol);
        }
    }
}

const IP_IN_IP: u8 = 4;

/// Writes an ESP header. Source: RFC 4303.
fn write_esp(line: &mut Line<'_>, payload: Bytes<'_>) {
    let Some((spi, sequence)) = payload.be32(0).zip(payload.be32(4)) else {
        return line.cut_off("esp");
    };
    line.out.put("ESP(spi=");
    line.out.hex(spi, 8);
    line.out.put(",seq=");
    line.out.hex(sequence, 1);
    line.out.put(")");
    line.length(payload.len());
}

/// Writes name and number of a protocol as `tcpdump -v` does: `TCP (6)`.
pub fn write_name(out: &mut Vec<u8>, protocol: u8) {
    match name(protocol) {
        Some(name) => out.extend(name.bytes().map(|byte| byte.to_ascii_uppercase())),
        None => out.put("unknown"),
    }
    out.put(" (");
    out.dec(protocol);
    out.put(")");
}

/// Returns the name of a protocol above IP. Source: IANA, "Assigned Internet Protocol Numbers".
fn name(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        number::HOP_BY_HOP => "options",
        number::ICMP => "icmp",
        number::IGMP => "igmp",
        IP_IN_IP => "ipip",
        number::TCP => "tcp",
        number::UDP => "udp",
        number::DCCP => "dccp",
        number::IPV6 => "ipv6",
        number::ROUTING => "routing",
        number::FRAGMENT => "fragment",
        number::GRE => "gre",
        number::ESP => "esp",
        number::AH => "ah",
        number::ICMPV6 => "icmpv6",
        number::DESTINATION_OPTIONS => "dstopt",
        number::OSPF => "ospf",
        number::SCTP => "sctp",
        number::UDP_LITE => "udplite",
        59 => "no next header",
        88 => "eigrp",
        103 => "pim",
        112 => "vrrp",
        _ => return None,
    })
}
