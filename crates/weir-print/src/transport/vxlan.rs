//! Prints VXLAN. Source: RFC 7348; Linux used port 8472 before 4789 was assigned.

use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Next;
use crate::text::Text;

pub const PORT: u16 = 4789;
pub const OLD_PORT: u16 = 8472;
const HEADER_BYTES: usize = 8;

/// Returns whether the data can be VXLAN: the flag for a valid VNI is always set.
pub fn is_it(data: Bytes<'_>) -> bool {
    data.u8(0).is_some_and(|flags| flags & 0x08 != 0) && data.len() >= HEADER_BYTES
}

pub fn write<'a>(line: &mut Line<'_>, data: Bytes<'a>) -> Option<Next<'a>> {
    line.out.put("VXLAN, ");
    let Some((flags, vni)) = data.u8(0).zip(data.be32(4)) else {
        line.cut_off("vxlan");
        return None;
    };
    line.out.put("flags [I] (");
    line.out.hex(flags, 2);
    line.out.put("), vni ");
    line.out.dec(vni >> 8);
    line.out.put(": ");
    Some(Next::Ethernet(data.after(HEADER_BYTES)))
}
