//! Prints GENEVE. Source: RFC 8926.

use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Next;
use crate::text::Text;

pub const PORT: u16 = 6081;
const HEADER_BYTES: usize = 8;

/// Returns whether the data can be GENEVE: version 0 is the only version.
pub fn is_it(data: Bytes<'_>) -> bool {
    data.u8(0).is_some_and(|first| first >> 6 == 0) && data.len() >= HEADER_BYTES
}

pub fn write<'a>(line: &mut Line<'_>, data: Bytes<'a>) -> Option<Next<'a>> {
    line.out.put("Geneve, ");
    let Some(&[first, flags, k0, k1, v0, v1, v2, _]) = data.head::<8>() else {
        line.cut_off("geneve");
        return None;
    };
    line.out.put(match flags >> 6 {
        0 => "Flags [none]",
        1 => "Flags [C]",
        2 => "Flags [O]",
        _ => "Flags [OC]",
    });
    line.out.put(", vni ");
    line.out.hex(u32::from_be_bytes([0, v0, v1, v2]), 1);
    let option_bytes = usize::from(first & 0x3f) * 4;
    if option_bytes > 0 {
        line.out.put(", options [");
        line.out.dec(option_bytes as u64);
        line.out.put(" bytes]");
    }
    line.out.put(": ");
    let kind = u16::from_be_bytes([k0, k1]);
    Some(Next::EtherType(kind, data.after(HEADER_BYTES + option_bytes)))
}
