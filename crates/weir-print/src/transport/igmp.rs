//! Prints IGMP. Source: RFC 2236, 3376.

use crate::bytes::Bytes;
use crate::line::Line;
use crate::text::Text;

pub fn write(line: &mut Line<'_>, message: Bytes<'_>) {
    let Some(&[kind, _, _, _, a, b, c, d]) = message.head::<8>() else {
        return line.cut_off("igmp");
    };
    let group = [a, b, c, d];
    line.out.put("igmp ");
    let (name, has_group) = match kind {
        0x11 if message.len() >= 12 => ("query v3", group != [0; 4]),
        0x11 => ("query v2", group != [0; 4]),
        0x12 => ("v1 report", true),
        0x16 => ("v2 report", true),
        0x17 => ("leave", true),
        0x22 => ("v3 report", false),
        _ => ("type", false),
    };
    line.out.put(name);
    if has_group {
        line.out.put(" ");
        line.out.v4(group);
    } else if kind == 0x22 {
        line.out.put(", ");
        line.out.dec(u16::from_be_bytes([c, d]));
        line.out.put(" group record(s)");
    } else if name == "type" {
        line.out.put(" ");
        line.out.hex(kind, 2);
    }
}
