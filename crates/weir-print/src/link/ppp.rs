//! Prints PPP: a protocol number and its packet. Source: RFC 1661, 1662; IANA, "PPP Numbers".

use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Next;
use crate::text::Text;

const ADDRESS: u8 = 0xff;
const CONTROL: u8 = 0x03;
const CISCO_UNICAST: u8 = 0x0f;
/// Protocol number of the keepalives of Cisco HDLC.
const SLARP: u16 = 0x8035;

/// Prints a frame of a serial line, with address and control fields, or without them if they are compressed.
pub fn write_framed<'a>(line: &mut Line<'_>, frame: Bytes<'a>) -> Option<Next<'a>> {
    match frame.head::<2>() {
        Some(&[ADDRESS, CONTROL]) => write(line, frame.after(2)),
        // Cisco HDLC uses the same link type.
        Some(&[CISCO_UNICAST, 0]) => write_cisco(line, frame),
        _ => write(line, frame),
    }
}

/// Prints a Cisco HDLC frame: address, control and an ethertype.
pub fn write_cisco<'a>(line: &mut Line<'_>, frame: Bytes<'a>) -> Option<Next<'a>> {
    let Some(kind) = frame.be16(2) else {
        line.cut_off("chdlc");
        return None;
    };
    if kind == SLARP {
        line.out.put("SLARP");
        line.length(frame.len() - 4);
        return None;
    }
    Some(Next::EtherType(kind, frame.after(4)))
}

/// Prints PPP from the protocol number on.
pub fn write<'a>(line: &mut Line<'_>, frame: Bytes<'a>) -> Option<Next<'a>> {
    // If the first byte is odd, it is the whole protocol number (RFC 1661, section 6.5).
    let (protocol, packet) = match (frame.u8(0), frame.be16(0)) {
        (Some(byte), _) if byte & 1 == 1 => (u16::from(byte), frame.after(1)),
        (_, Some(protocol)) => (protocol, frame.after(2)),
        _ => {
            line.cut_off("ppp");
            return None;
        }
    };
    if line.options.link {
        line.out.put("PPP-");
        line.out.put(name(protocol).unwrap_or("unknown"));
        line.out.put(" (");
        line.out.hex(protocol, 4);
        line.out.put(")");
        line.length(frame.len());
        line.out.put(": ");
    }
    match protocol {
        0x0021 => return Some(Next::V4(packet)),
        0x0057 => return Some(Next::V6(packet)),
        0x0281 | 0x0283 => return Some(Next::Mpls(packet)),
        other => {
            match name(other) {
                Some(name) => line.out.put(name),
                None => {
                    line.out.put("PPP protocol ");
                    line.out.hex(other, 4);
                }
            }
            if other >= 0x8000 {
                write_control(line, packet);
            }
            line.length(packet.len());
        }
    }
    None
}

/// Writes code and identifier of a control packet: `, Conf-Request (0x01), id 1`
fn write_control(line: &mut Line<'_>, packet: Bytes<'_>) {
    let Some(&[code, id]) = packet.head::<2>() else { return };
    const CODES: [&str; 11] = [
        "Conf-Request",
        "Conf-Ack",
        "Conf-Nack",
        "Conf-Reject",
        "Term-Request",
        "Term-Ack",
        "Code-Reject",
        "Prot-Reject",
        "Echo-Request",
        "Echo-Reply",
        "Disc-Req",
    ];
    let Some(name) = usize::from(code).checked_sub(1).and_then(|at| CODES.get(at)) else { return };
    line.out.put(", ");
    line.out.put(name);
    line.out.put(" (");
    line.out.hex(code, 2);
    line.out.put("), id ");
    line.out.dec(id);
}

fn name(protocol: u16) -> Option<&'static str> {
    Some(match protocol {
        0x0021 => "IP",
        0x0057 => "IP6",
        0x8021 => "IPCP",
        0x8057 => "IP6CP",
        0x80fd => "CCP",
        0xc021 => "LCP",
        0xc023 => "PAP",
        0xc223 => "CHAP",
        _ => return None,
    })
}
