//! Prints MPLS labels, and finds the header after the last label. Source: RFC 3032, 5462; RFC 4928 for the first
//! nibble, by which the next header is recognized.

use crate::bytes::Bytes;
use crate::limits::LABELS_MAX;
use crate::line::Line;
use crate::next::Next;
use crate::text::Text;

pub fn write<'a>(line: &mut Line<'_>, mut rest: Bytes<'a>) -> Option<Next<'a>> {
    line.begin("MPLS ");
    for _ in 0..LABELS_MAX {
        let Some(word) = rest.be32(0) else {
            line.cut_off("mpls");
            return None;
        };
        rest = rest.after(4);
        let is_last = word & 0x100 != 0;
        let out = &mut *line.out;
        out.put("(label ");
        out.dec(word >> 12);
        out.put(match word >> 12 {
            0 => " (IPv4 explicit NULL)",
            1 => " (router alert)",
            2 => " (IPv6 explicit NULL)",
            3 => " (implicit NULL)",
            _ => "",
        });
        out.put(", tc ");
        out.dec(word >> 9 & 7);
        out.put(if is_last { ", [S], ttl " } else { ", ttl " });
        out.dec(word & 0xff);
        out.put(") ");
        if is_last {
            return match rest.u8(0).map(|byte| byte >> 4) {
                Some(4 | 6) => Some(Next::Ip(rest)),
                _ => {
                    line.out.put("payload");
                    line.length(rest.len());
                    None
                }
            };
        }
    }
    line.out.put("[too many headers]");
    None
}
