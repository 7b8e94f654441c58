//! Prints ICMPv6. Source: RFC 4443, 4861, 2710, 3810; IANA, "ICMPv6 Parameters".

use weir_frame::headers::protocol;

use crate::bytes::Bytes;
use crate::line::Line;
use crate::text::Text;

const HEADER_BYTES: usize = 8;

pub fn write(line: &mut Line<'_>, message: Bytes<'_>) {
    line.out.put("ICMP6, ");
    let Some((kind, code)) = message.u8(0).zip(message.u8(1)) else { return line.cut_off("icmp6") };
    match kind {
        1 => write_unreachable(line, code, message.after(HEADER_BYTES)),
        2 => {
            line.out.put("packet too big");
            if let Some(mtu) = message.be32(4) {
                line.out.put(", mtu ");
                line.out.dec(mtu);
            }
        }
        3 => match code {
            0 => write_quoted(line, "time exceeded in-transit for ", message.after(HEADER_BYTES)),
            _ => line.out.put("ip6 reassembly time exceeded"),
        },
        4 => line.out.put("parameter problem"),
        128 | 129 => {
            line.out.put(if kind == 128 { "echo request" } else { "echo reply" });
            if let Some((id, sequence)) = message.be16(4).zip(message.be16(6)) {
                line.out.put(", id ");
                line.out.dec(id);
                line.out.put(", seq ");
                line.out.dec(sequence);
            }
        }
        130 => line.out.put("multicast listener query"),
        131 => line.out.put("multicast listener report"),
        132 => line.out.put("multicast listener done"),
        133 => line.out.put("router solicitation"),
        134 => line.out.put("router advertisement"),
        135 => write_target(line, "neighbor solicitation, who has ", message),
        136 => write_target(line, "neighbor advertisement, tgt is ", message),
        137 => line.out.put("redirect"),
        143 => {
            line.out.put("multicast listener report v2");
            if let Some(records) = message.be16(6) {
                line.out.put(", ");
                line.out.dec(records);
                line.out.put(" group record(s)");
            }
        }
        other => {
            line.out.put("type-");
            line.out.dec(other);
            line.out.put(" code ");
            line.out.dec(code);
        }
    }
    line.length(message.len());
}

fn write_target(line: &mut Line<'_>, name: &str, message: Bytes<'_>) {
    line.out.put(name);
    match message.after(HEADER_BYTES).head::<16>() {
        Some(target) => line.out.v6(*target),
        None => line.cut_off("icmp6"),
    }
}

fn write_quoted(line: &mut Line<'_>, name: &str, quoted: Bytes<'_>) {
    line.out.put(name);
    match quoted.after(24).head::<16>() {
        Some(dst) => line.out.v6(*dst),
        None => line.out.put("?"),
    }
}

fn write_unreachable(line: &mut Line<'_>, code: u8, quoted: Bytes<'_>) {
    line.out.put("destination unreachable, ");
    match code {
        0 => write_quoted(line, "unreachable route ", quoted),
        1 => write_quoted(line, "unreachable prohibited ", quoted),
        2 => write_quoted(line, "beyond scope ", quoted),
        3 => write_quoted(line, "unreachable address ", quoted),
        4 => {
            write_quoted(line, "unreachable port, ", quoted);
            let Some(port) = quoted.after(40).be16(2) else { return line.cut_off("icmp6") };
            line.out.put(match quoted.u8(6) {
                Some(protocol::TCP) => " tcp port ",
                Some(protocol::UDP) => " udp port ",
                _ => " port ",
            });
            line.out.dec(port);
        }
        other => {
            line.out.put("code ");
            line.out.dec(other);
        }
    }
}
