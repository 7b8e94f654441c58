//! Linux cooked headers, which other tools write for a capture on "any". Source: LINKTYPE_LINUX_SLL,
//! _SLL2.

use super::llc;
use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Next;
use crate::text::Text;

pub fn write<'a>(line: &mut Line<'_>, frame: Bytes<'a>) -> Option<Next<'a>> {
    let Some(head) = frame.head::<16>() else {
        line.cut_off("sll");
        return None;
    };
    let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    if line.options.link {
        line.out.put(way(be16(0)).trim_end());
        write_address(line, be16(4), &head[6..14]);
        line.out.put(", ");
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
    if line.options.link {
        write_address(line, u16::from(head[11]), &head[12..20]);
        line.out.put(", ");
    }
    write_payload(line, u16::from_be_bytes([head[0], head[1]]), frame.after(20))
}

fn write_payload<'a>(line: &mut Line<'_>, protocol: u16, packet: Bytes<'a>) -> Option<Next<'a>> {
    // Kernel numbers for frames without an ethertype: 802.3 "raw" of Novell, and 802.2.
    match protocol {
        1 => {
            line.out.put("802.3");
            line.length(packet.len());
            None
        }
        4 => llc::write(line, packet),
        other => Some(Next::EtherType(other, packet)),
    }
}

/// The receiver, in tcpdump's words.
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

fn write_address(line: &mut Line<'_>, len: u16, field: &[u8]) {
    if let (6, Some(mac)) = (len, field.first_chunk()) {
        line.out.put(" ");
        line.out.mac(*mac);
    }
}
