//! Prints TCP. Source: RFC 9293; options: RFC 7323, 2018, 7413, 5925, 8684; IANA, "TCP Parameters".

use weir_frame::headers::protocol;
use weir_frame::record::Flags;

use crate::app::dns;
use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Above;
use crate::paint::Paint;
use crate::text::Text;

const HEADER_BYTES: usize = 20;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;

pub fn write(line: &mut Line<'_>, above: Above<'_>) {
    let segment = above.payload;
    let Some((src, dst)) = segment.be16(0).zip(segment.be16(2)) else {
        above.write_hosts(line);
        return line.cut_off("tcp");
    };
    above.write_ports(line, src, dst);
    let Some(head) = segment.head::<HEADER_BYTES>() else { return line.cut_off("tcp") };
    let be16 = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let be32 = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let header_bytes = usize::from(head[12] >> 4) * 4;
    if header_bytes < HEADER_BYTES || header_bytes > segment.len() {
        line.out.put("tcp [bad header length ");
        line.out.dec(header_bytes as u64);
        line.out.put("]");
        return line.length(segment.len());
    }
    let (flags, len) = (head[13], segment.len() - header_bytes);
    write_flags(line, flags);
    if line.options.verbose && !line.options.unchecked {
        write_checksum(line, &above, be16(16));
    }
    let out = &mut *line.out;
    if len > 0 || flags & (SYN | FIN | RST) != 0 || line.options.verbose {
        out.put(", seq ");
        out.dec(be32(4));
        if len > 0 {
            out.put(":");
            out.dec(be32(4).wrapping_add(len as u32));
        }
    }
    if flags & ACK != 0 {
        out.put(", ack ");
        out.dec(be32(8));
    }
    out.put(", win ");
    out.dec(be16(14));
    if flags & URG != 0 {
        out.put(", urg ");
        out.dec(be16(18));
    }
    if header_bytes > HEADER_BYTES {
        let options = segment.kept().get(HEADER_BYTES..).unwrap_or(&[]);
        let is_cut = segment.kept().len() < header_bytes;
        write_options(out, &options[..options.len().min(header_bytes - HEADER_BYTES)], is_cut);
    }
    line.length(len);
    if len > 0 && (src == dns::PORT || dst == dns::PORT) {
        write_dns(line, segment.after(header_bytes));
    }
}

/// Writes the DNS message of a segment, if the segment has exactly one whole message after its length field. Source:
/// RFC 1035, section 4.2.2.
fn write_dns(line: &mut Line<'_>, data: Bytes<'_>) {
    if data.be16(0).is_some_and(|len| usize::from(len) + 2 == data.len()) {
        line.out.put(": ");
        dns::write(line, data.after(2), false, false);
    }
}

fn write_flags(line: &mut Line<'_>, flags: u8) {
    line.out.put("Flags [");
    let paint = match flags {
        reset if reset & RST != 0 => Some(Paint::Red),
        ends if ends & (SYN | FIN) != 0 => Some(Paint::Green),
        _ => None,
    };
    line.begin_paint(paint);
    for (bit, letter) in b"FSRP.UEW".iter().enumerate() {
        if flags & (1 << bit) != 0 {
            line.out.push(*letter);
        }
    }
    line.out.put(if flags == 0 { "none" } else { "" });
    line.end_paint(paint);
    line.out.put("]");
}

fn write_checksum(line: &mut Line<'_>, above: &Above<'_>, found: u16) {
    let Some(wanted) = above.checksum(protocol::TCP, 16, above.payload.len()) else { return };
    line.out.put(", cksum ");
    line.out.hex(found, 4);
    if line.flags.has(Flags::CHECKSUM_NOT_READY) {
        line.out.put(" (left to the NIC)");
    } else if found == wanted {
        line.out.put(" (correct)");
    } else {
        line.out.put(" (incorrect -> ");
        line.out.hex(wanted, 4);
        line.out.put(")");
    }
}

/// Writes the options: `, options [mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 7]`
fn write_options(out: &mut Vec<u8>, mut options: &[u8], is_cut: bool) {
    out.put(", options [");
    let mut separator = "";
    while let Some(&kind) = options.first() {
        out.put(separator);
        separator = ",";
        let len = match kind {
            0 | 1 => 1,
            _ => usize::from(options.get(1).copied().unwrap_or(0)),
        };
        let Some(option) = options.get(..len).filter(|_| len >= 2 || kind < 2) else {
            out.put(if is_cut { "[|tcp-options]" } else { "bad" });
            break;
        };
        write_option(out, kind, option);
        options = &options[len..];
        if kind == 0 {
            break;
        }
    }
    out.put("]");
}

fn write_option(out: &mut Vec<u8>, kind: u8, option: &[u8]) {
    let bytes = Bytes::new(option, option.len());
    let be32 = |at| bytes.be32(at);
    match (kind, option.len()) {
        (0, _) => out.put("eol"),
        (1, _) => out.put("nop"),
        (2, 4) => {
            out.put("mss ");
            out.dec(bytes.be16(2).unwrap_or(0));
        }
        (3, 3) => {
            out.put("wscale ");
            out.dec(option[2]);
        }
        (4, 2) => out.put("sackOK"),
        (5, 10 | 18 | 26 | 34) => {
            out.put("sack ");
            out.dec((option.len() as u64 - 2) / 8);
            out.put(" ");
            for at in (2..option.len()).step_by(8) {
                out.put("{");
                out.dec(be32(at).unwrap_or(0));
                out.put(":");
                out.dec(be32(at + 4).unwrap_or(0));
                out.put("}");
            }
        }
        (8, 10) => {
            out.put("TS val ");
            out.dec(be32(2).unwrap_or(0));
            out.put(" ecr ");
            out.dec(be32(6).unwrap_or(0));
        }
        (19, _) => out.put("md5"),
        (28, 4) => out.put("uto"),
        (29, _) => out.put("tcp-ao"),
        (30, _) => out.put("mptcp"),
        (34, _) => out.put("tfo"),
        _ => {
            out.put("unknown-");
            out.dec(kind);
        }
    }
}
