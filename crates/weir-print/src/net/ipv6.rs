//! Prints IPv6 and its extension headers. Source: RFC 8200, 4302 (AH), 2675 (jumbograms).

use weir_frame::headers::protocol::{
    AH, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ROUTING, TCP, UDP,
};
use weir_frame::limits::EXTENSIONS_MAX;

use super::ipv4;
use crate::bytes::Bytes;
use crate::hosts::Hosts;
use crate::limits::PADDED_BYTES_MAX;
use crate::line::Line;
use crate::next::{Above, Next};
use crate::text::Text;
use crate::transport;

pub fn write<'a>(line: &mut Line<'_>, packet: Bytes<'a>) -> Option<Next<'a>> {
    line.begin("IP6 ");
    let Some(head) = packet.head::<40>() else {
        line.cut_off("ip6");
        return None;
    };
    if head[0] >> 4 != 6 {
        line.out.put("[bad version ");
        line.out.dec(head[0] >> 4);
        line.out.put("]");
        line.length(packet.len());
        return None;
    }
    let mut protocol = head[6];
    let payload_bytes = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let len = if payload_bytes == 0 && packet.len() > 40 {
        // A jumbogram has its length in a hop-by-hop option. A short Ethernet frame may have padding after a header
        // without payload. Otherwise the NIC will set the length.
        line.has_ip_length_0 |= protocol != HOP_BY_HOP && packet.len() > PADDED_BYTES_MAX;
        packet.len() - 40
    } else {
        payload_bytes
    };
    if line.options.verbose {
        write_header(line, head, payload_bytes);
    }
    if len + 40 > packet.len() {
        line.out.put("truncated-ip6 - ");
        line.out.dec((len + 40 - packet.len()) as u64);
        line.out.put(" bytes missing! ");
    }
    let hosts = Hosts::V6 {
        src: head[8..].first_chunk().expect("32 bytes"),
        dst: head[24..].first_chunk().expect("16 bytes"),
    };
    let mut payload = Bytes::new(packet.kept(), len + 40).after(40);
    // As in tcpdump: if TCP or UDP follows at once, the addresses are printed with the ports, otherwise before the
    // extension headers.
    let has_hosts = !matches!(protocol, TCP | UDP);
    if has_hosts {
        hosts.write(line);
    }
    let mut is_fragment = false;
    for _ in 0..EXTENSIONS_MAX {
        let Some(name) = extension(protocol) else { break };
        line.out.put(name);
        let Some(&[next, size, o0, o1, ..]) = payload.head::<8>() else {
            line.cut_off("ip6-extension");
            return None;
        };
        let bytes = match protocol {
            FRAGMENT => 8,
            AH => (usize::from(size) + 2) * 4,
            _ => (usize::from(size) + 1) * 8,
        };
        let is_of_fragments = protocol == FRAGMENT;
        payload = payload.after(bytes);
        protocol = next;
        if is_of_fragments {
            let word = u16::from_be_bytes([o0, o1]);
            let offset = usize::from(word & 0xfff8);
            is_fragment |= word & 1 != 0;
            line.out.put("(");
            line.out.dec(offset as u64);
            line.out.put("|");
            line.out.dec(payload.len() as u64);
            line.out.put(") ");
            if offset > 0 {
                ipv4::write_fragment(line, protocol, offset, payload.len());
                return None;
            }
        }
    }
    if extension(protocol).is_some() {
        line.out.put("[too many headers]");
        return None;
    }
    line.has_first_fragment |= is_fragment;
    Some(Next::Above(protocol, Above { hosts, payload, is_fragment, has_hosts }))
}

fn extension(protocol: u8) -> Option<&'static str> {
    Some(match protocol {
        HOP_BY_HOP => "HBH ",
        ROUTING => "RT6 ",
        FRAGMENT => "frag ",
        AH => "AH ",
        DESTINATION_OPTIONS => "DSTOPT ",
        _ => return None,
    })
}

/// Writes the fields of the header: `(flowlabel 0x12345, hlim 64, next-header TCP (6) payload length: 20) `
fn write_header(line: &mut Line<'_>, head: &[u8; 40], payload_bytes: usize) {
    let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let out = &mut *line.out;
    out.put("(");
    if word >> 20 & 0xff != 0 {
        out.put("class ");
        out.hex(word >> 20 & 0xff, 2);
        out.put(", ");
    }
    if word & 0xf_ffff != 0 {
        out.put("flowlabel ");
        out.hex(word & 0xf_ffff, 5);
        out.put(", ");
    }
    out.put("hlim ");
    out.dec(head[7]);
    out.put(", next-header ");
    transport::write_name(out, head[6]);
    out.put(" payload length: ");
    out.dec(payload_bytes as u64);
    out.put(") ");
}
