//! Prints IEEE 802.2 (LLC) after an 802.3 length: STP, SNAP, or the numbers of the service access points.

use crate::bytes::Bytes;
use crate::line::Line;
use crate::net::stp;
use crate::next::Next;
use crate::text::Text;

const STP_SAP: u8 = 0x42;
const SNAP_SAP: u8 = 0xaa;

pub fn write<'a>(line: &mut Line<'_>, rest: Bytes<'a>) -> Option<Next<'a>> {
    let Some(&[dsap, ssap, control]) = rest.head::<3>() else {
        line.cut_off("llc");
        return None;
    };
    match (dsap, ssap, control) {
        (STP_SAP, STP_SAP, 3) => stp::write(line, rest.after(3)),
        (SNAP_SAP, SNAP_SAP, 3) => return write_snap(line, rest.after(3)),
        _ => {
            line.begin("LLC, ");
            line.out.put("dsap ");
            line.out.hex(dsap, 2);
            line.out.put(", ssap ");
            line.out.hex(ssap, 2);
            line.out.put(", ctrl ");
            line.out.hex(control, 2);
            line.length(rest.len());
        }
    }
    None
}

/// Returns the length of the LLC header, with the SNAP header after it.
pub fn header_bytes(rest: Bytes<'_>) -> usize {
    match rest.head::<3>() {
        Some(&[SNAP_SAP, SNAP_SAP, 3]) => 8,
        // Unnumbered frames have one control byte, the others two. Source: IEEE 802.2, 5.4.
        Some(&[.., control]) if control & 3 == 3 => 3,
        Some(_) => 4,
        None => 0,
    }
}

fn write_snap<'a>(line: &mut Line<'_>, rest: Bytes<'a>) -> Option<Next<'a>> {
    let Some(&[a, b, c, k0, k1]) = rest.head::<5>() else {
        line.cut_off("snap");
        return None;
    };
    let (oui, kind) = (u32::from_be_bytes([0, a, b, c]), u16::from_be_bytes([k0, k1]));
    // With OUI 0 the number is an ethertype (RFC 1042).
    if oui == 0 {
        return Some(Next::EtherType(kind, rest.after(5)));
    }
    line.begin("SNAP, ");
    line.out.put("oui ");
    line.out.hex(oui, 6);
    line.out.put(", pid ");
    line.out.hex(kind, 4);
    line.length(rest.len().saturating_sub(5));
    None
}
