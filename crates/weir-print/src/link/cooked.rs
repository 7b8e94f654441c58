//! Prints Linux cooked headers, which other tools write when they capture on "any". Source: LINKTYPE_LINUX_SLL,
//! LINKTYPE_LINUX_SLL2.

use super::{ethernet, llc};
use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Next;
use crate::text::Text;

// Protocol numbers of Linux for frames without an ethertype: "raw" 802.3 of Novell, and 802.2.
const NOVELL: u16 = 1;
const LLC: u16 = 4;

pub fn write<'a>(line: &mut Line<'_>, frame: Bytes<'a>) -> Option<Next<'a>> {
    let Some(head) = frame.head::<16>() else {
        line.cut_off("sll");
        return None;
    };
    let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    if line.options.link {
        // Right-aligned in three columns, as tcpdump does. In version 2 the text is left-aligned.
        let way = way(be16(0)).trim_end();
        line.out.put(&"   "[way.len()..]);
        line.out.put(way);
        line.out.put(" ");
        write_link(line, (be16(4), &head[6..14]), be16(14), frame.len());
    }
    write_payload(line, be16(14), frame.after(16))
}

pub fn write_2<'a>(line: &mut Line<'_>, frame: Bytes<'a>) -> Option<Next<'a>> {
    let Some(head) = frame.head::<20>() else {
        line.cut_off("sll2");
        return None;
    };
    line.out.put("if");
    line.out.dec(u32::from_be_bytes([head[4], head[5], head[6], head[7]]));
    line.out.put(" ");
    line.out.put(way(u16::from(head[10])));
    let protocol = u16::from_be_bytes([head[0], head[1]]);
    if line.options.link {
        write_link(line, (u16::from(head[11]), &head[12..20]), protocol, frame.len());
    }
    write_payload(line, protocol, frame.after(20))
}

/// Writes the sender's address and the protocol: `02:00:00:00:00:01 ethertype IPv4 (0x0800), length 56: `
fn write_link(line: &mut Line<'_>, address: (u16, &[u8]), protocol: u16, len: usize) {
    if let (6, Some(mac)) = (address.0, address.1.first_chunk()) {
        line.out.mac(*mac);
        line.out.put(" ");
    }
    match protocol {
        NOVELL => line.out.put("802.3"),
        LLC => line.out.put("802.2"),
        kind => ethernet::write_named_kind(line, kind),
    }
    line.length(len);
    line.out.put(": ");
}

fn write_payload<'a>(line: &mut Line<'_>, protocol: u16, packet: Bytes<'a>) -> Option<Next<'a>> {
    match protocol {
        NOVELL => {
            line.out.put("802.3");
            line.length(packet.len());
            None
        }
        LLC => llc::write(line, packet),
        other => Some(Next::EtherType(other, packet)),
    }
}

/// Returns tcpdump's word for the packet type: the receiver, or the direction.
fn way(kind: u16) -> &'static str {
    match kind {
        0 => "In  ",
        1 => "B   ",
        2 => "M   ",
        3 => "P   ",
        4 => "Out ",
        _ => "?   ",
    }
}
