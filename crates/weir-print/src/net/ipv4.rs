//! Prints IPv4. Source: RFC 791; RFC 3168 (ECN).

use weir_frame::checksum::{fold, word_sum};

use crate::bytes::Bytes;
use crate::hosts::Hosts;
use crate::line::Line;
use crate::next::{Above, Next};
use crate::text::Text;
use crate::transport;

const MORE_FRAGMENTS: u16 = 0x2000;
const DONT_FRAGMENT: u16 = 0x4000;

pub fn write<'a>(line: &mut Line<'_>, packet: Bytes<'a>) -> Option<Next<'a>> {
    line.begin("IP ");
    let Some(head) = packet.head::<20>() else {
        line.cut_off("ip");
        return None;
    };
    let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let header_bytes = usize::from(head[0] & 15) * 4;
    if head[0] >> 4 != 4 || header_bytes < 20 {
        line.out.put("[bad version or header length ");
        line.out.hex(head[0], 2);
        line.out.put("]");
        line.length(packet.len());
        return None;
    }
    let total = match usize::from(be16(2)) {
        0 => {
            line.has_ip_length_0 = true;
            packet.len()
        }
        total if total < header_bytes => {
            line.out.put("[bad length ");
            line.out.dec(total as u64);
            line.out.put("]");
            return None;
        }
        total => total,
    };
    let fragment = be16(6);
    let offset = usize::from(fragment & 0x1fff) * 8;
    if line.options.verbose {
        write_header(line, packet.kept(), head, total);
    }
    if total > packet.len() {
        line.out.put("truncated-ip - ");
        line.out.dec((total - packet.len()) as u64);
        line.out.put(" bytes missing! ");
    }
    let hosts = Hosts::V4 {
        src: head[12..].first_chunk().expect("8 bytes"),
        dst: head[16..].first_chunk().expect("4 bytes"),
    };
    // Use the length in the header, so that printed lengths are those on the wire even if the capture has fewer bytes.
    let payload = Bytes::new(packet.kept(), total).after(header_bytes);
    let protocol = head[9];
    if offset > 0 {
        hosts.write(line);
        write_fragment(line, protocol, offset, payload.len());
        return None;
    }
    let is_fragment = fragment & MORE_FRAGMENTS != 0;
    line.has_first_fragment |= is_fragment;
    Some(Next::Above(protocol, Above { hosts, payload, is_fragment, has_hosts: false }))
}

/// Writes the line of a later fragment: `udp fragment, offset 1480, length 520`
pub fn write_fragment(line: &mut Line<'_>, protocol: u8, offset: usize, len: usize) {
    transport::write_plain(line.out, protocol);
    line.out.put(" fragment, offset ");
    line.out.dec(offset as u64);
    line.length(len);
}

/// Writes the fields of the header: `(tos 0x0, ttl 64, id 1, offset 0, flags [DF], proto TCP (6), length 60) `
fn write_header(line: &mut Line<'_>, packet: &[u8], head: &[u8; 20], total: usize) {
    let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let is_checked = !line.options.unchecked;
    let out = &mut *line.out;
    out.put("(tos ");
    out.hex(head[1], 1);
    out.put(["", ",ECT(1)", ",ECT(0)", ",CE"][usize::from(head[1] & 3)]);
    out.put(", ttl ");
    out.dec(head[8]);
    out.put(", id ");
    out.dec(be16(4));
    out.put(", offset ");
    out.dec((be16(6) & 0x1fff) * 8);
    let flags = match (be16(6) & MORE_FRAGMENTS != 0, be16(6) & DONT_FRAGMENT != 0) {
        (false, false) => "none",
        (false, true) => "DF",
        (true, false) => "+",
        (true, true) => "+, DF",
    };
    out.put(", flags [");
    out.put(flags);
    out.put("], proto ");
    transport::write_name(out, head[9]);
    out.put(", length ");
    out.dec(total as u64);
    let header_bytes = usize::from(head[0] & 15) * 4;
    if header_bytes > 20 {
        out.put(", options ");
        out.dec(header_bytes as u64 - 20);
        out.put(" bytes");
    }
    if let Some(header) = packet.get(..header_bytes)
        && is_checked
        && fold(word_sum(header)) != 0
    {
        let wanted = fold(word_sum(&header[..10]) + word_sum(&header[12..]));
        out.put(", bad cksum ");
        out.hex(be16(10), 1);
        out.put(" (->");
        out.hex(wanted, 1);
        out.put(")!");
    }
    out.put(") ");
}
