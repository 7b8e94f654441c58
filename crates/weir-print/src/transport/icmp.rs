//! Prints ICMP. Source: RFC 792, 950, 1191, 1256; IANA, "ICMP Parameters".

use weir_frame::headers::protocol;

use crate::bytes::Bytes;
use crate::line::Line;
use crate::text::Text;

const HEADER_BYTES: usize = 8;

pub fn write(line: &mut Line<'_>, message: Bytes<'_>) {
    line.out.put("ICMP ");
    let Some(&[kind, code, _, _, w0, w1, w2, w3]) = message.head::<HEADER_BYTES>() else {
        return line.cut_off("icmp");
    };
    let (high, low) = (u16::from_be_bytes([w0, w1]), u16::from_be_bytes([w2, w3]));
    let quoted = message.after(HEADER_BYTES);
    match kind {
        0 | 8 => {
            line.out.put(if kind == 8 { "echo request" } else { "echo reply" });
            line.out.put(", id ");
            line.out.dec(high);
            line.out.put(", seq ");
            line.out.dec(low);
        }
        3 => write_unreachable(line, code, low, quoted),
        5 => write_redirect(line, code, [w0, w1, w2, w3], quoted),
        11 => match code {
            0 => line.out.put("time exceeded in-transit"),
            1 => line.out.put("ip reassembly time exceeded"),
            other => write_other(line, "time exceeded", other),
        },
        12 => write_other(line, "parameter problem", code),
        4 => line.out.put("source quench"),
        9 => line.out.put("router advertisement"),
        10 => line.out.put("router solicitation"),
        13 | 14 => {
            line.out.put(if kind == 13 { "time stamp query" } else { "time stamp reply" });
            line.out.put(" id ");
            line.out.dec(high);
            line.out.put(" seq ");
            line.out.dec(low);
        }
        17 => line.out.put("address mask request"),
        18 => line.out.put("address mask reply"),
        other => {
            line.out.put("type-");
            line.out.dec(other);
            write_other(line, "", code);
        }
    }
    line.length(message.len());
}

fn write_other(line: &mut Line<'_>, name: &str, code: u8) {
    line.out.put(name);
    line.out.put(" code ");
    line.out.dec(code);
}

/// Destination, protocol and destination port of the packet that an error message quotes.
struct Quoted {
    dst: [u8; 4],
    protocol: u8,
    dst_port: Option<u16>,
}

impl Quoted {
    fn of(packet: Bytes<'_>) -> Option<Quoted> {
        let head = packet.head::<20>()?;
        let header_bytes = usize::from(head[0] & 15) * 4;
        Some(Quoted {
            dst: [head[16], head[17], head[18], head[19]],
            protocol: head[9],
            dst_port: packet.after(header_bytes).be16(2),
        })
    }
}

fn write_unreachable(line: &mut Line<'_>, code: u8, mtu: u16, quoted: Bytes<'_>) {
    let Some(Quoted { dst, protocol, dst_port }) = Quoted::of(quoted) else {
        return write_other(line, "unreachable", code);
    };
    let (before, after) = match code {
        0 => ("net ", " unreachable"),
        1 => ("host ", " unreachable"),
        4 => ("", " unreachable - need to frag"),
        5 => ("", " unreachable - source route failed"),
        6 => ("net ", " unreachable - unknown"),
        7 => ("host ", " unreachable - unknown"),
        9 => ("net ", " unreachable - admin prohibited"),
        10 => ("host ", " unreachable - admin prohibited"),
        13 => ("host ", " unreachable - admin prohibited filter"),
        _ => ("", ""),
    };
    line.out.put(before);
    line.out.v4(dst);
    match (code, dst_port) {
        (2, _) => {
            line.out.put(" protocol ");
            line.out.dec(protocol);
            line.out.put(" unreachable");
        }
        (3, Some(port)) => {
            line.out.put(match protocol {
                protocol::TCP => " tcp port ",
                protocol::UDP => " udp port ",
                _ => " port ",
            });
            line.out.dec(port);
            line.out.put(" unreachable");
        }
        _ if after.is_empty() => write_other(line, " unreachable", code),
        _ => line.out.put(after),
    }
    if code == 4 && mtu != 0 {
        line.out.put(" (mtu ");
        line.out.dec(mtu);
        line.out.put(")");
    }
}

fn write_redirect(line: &mut Line<'_>, code: u8, gateway: [u8; 4], quoted: Bytes<'_>) {
    let Some(Quoted { dst, .. }) = Quoted::of(quoted) else {
        return write_other(line, "redirect", code);
    };
    line.out.put("redirect ");
    line.out.v4(dst);
    line.out.put(match code {
        0 => " to net ",
        2 => "-tos to net ",
        3 => "-tos to host ",
        _ => " to host ",
    });
    line.out.v4(gateway);
}
