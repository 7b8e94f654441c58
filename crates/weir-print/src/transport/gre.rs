//! Prints GRE. Source: RFC 2784, 2890, 2637 (version 1: PPTP).

use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Next;
use crate::text::Text;

const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
/// Flag of version 1: an acknowledgment number is present.
const ACKNOWLEDGMENT: u16 = 0x0080;
const PPP: u16 = 0x880b;

pub fn write<'a>(line: &mut Line<'_>, rest: Bytes<'a>) -> Option<Next<'a>> {
    let next = walk(line, rest);
    if next.is_none() {
        line.cut_off("gre");
    }
    next?
}

/// Writes the header and returns the next one. The outer `Option` is `None` if the header is cut off.
fn walk<'a>(line: &mut Line<'_>, rest: Bytes<'a>) -> Option<Option<Next<'a>>> {
    let (flags, kind) = rest.be16(0).zip(rest.be16(2))?;
    let version = flags & 7;
    line.out.put("GREv");
    line.out.dec(version);
    let mut inner = rest.after(4);
    if flags & (CHECKSUM | ROUTING) != 0 {
        inner = inner.after(4);
    }
    if flags & KEY != 0 {
        let key = inner.be32(0)?;
        inner = inner.after(4);
        if version == 0 {
            line.out.put(", key=");
            line.out.hex(key, 1);
        } else {
            // In version 1 the key has the length of the payload and the call ID.
            line.out.put(", call ");
            line.out.dec(key & 0xffff);
        }
    }
    if flags & SEQUENCE != 0 {
        let sequence = inner.be32(0)?;
        inner = inner.after(4);
        line.out.put(", seq ");
        line.out.dec(sequence);
    }
    if version == 1 && flags & ACKNOWLEDGMENT != 0 {
        let acknowledged = inner.be32(0)?;
        inner = inner.after(4);
        line.out.put(", ack ");
        line.out.dec(acknowledged);
    }
    line.length(rest.len());
    line.out.put(": ");
    Some(match kind {
        // Source routes are obsolete. Their length is known only after parsing all of them.
        _ if flags & ROUTING != 0 => {
            line.out.put("source routes");
            None
        }
        _ if inner.len() == 0 => {
            line.out.put("no payload");
            None
        }
        PPP if inner.kept().starts_with(&[0xff, 3]) => Some(Next::Ppp(inner.after(2))),
        PPP => Some(Next::Ppp(inner)),
        kind => Some(Next::EtherType(kind, inner)),
    })
}
