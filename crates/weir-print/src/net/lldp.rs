//! Prints LLDP: the name of the sending system. Source: IEEE 802.1AB-2016, section 8.

use crate::bytes::Bytes;
use crate::limits::FIELDS_MAX;
use crate::line::Line;
use crate::text::Text;

const END: u16 = 0;
const SYSTEM_NAME: u16 = 5;

pub fn write(line: &mut Line<'_>, rest: Bytes<'_>) {
    if !line.begin("LLDP") {
        line.out.put("LLDP");
    }
    line.length(rest.len());
    let mut fields = rest;
    for _ in 0..FIELDS_MAX {
        let Some(head) = fields.be16(0) else { return };
        let (kind, len) = (head >> 9, usize::from(head & 0x1ff));
        match kind {
            END => return,
            SYSTEM_NAME => {
                line.out.put(": ");
                return line.out.name(fields.after(2).up_to(len).kept());
            }
            _ => fields = fields.after(2 + len),
        }
    }
}
