//! Prints ARP and RARP. Source: RFC 826, 903.

use crate::bytes::Bytes;
use crate::line::Line;
use crate::text::Text;

const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

pub fn write(line: &mut Line<'_>, name: &str, packet: Bytes<'_>) {
    if line.begin(name) {
        line.out.put(", ");
    }
    let Some(body) = packet.head::<28>() else { return line.cut_off("arp") };
    let operation = u16::from_be_bytes([body[6], body[7]]);
    if !body.starts_with(&ETHERNET_IPV4) {
        line.out.put("of other address kinds, operation ");
        line.out.dec(operation);
        return line.length(packet.len());
    }
    let mac = |at: usize| std::array::from_fn::<u8, 6, _>(|i| body[at + i]);
    let ip = |at: usize| std::array::from_fn::<u8, 4, _>(|i| body[at + i]);
    let (sender_mac, sender, target_mac, target) = (mac(8), ip(14), mac(18), ip(24));
    let out = &mut *line.out;
    match operation {
        1 => {
            out.put("Request who-has ");
            out.v4(target);
            if target_mac != [0; 6] {
                out.put(" (");
                out.mac(target_mac);
                out.put(")");
            }
            out.put(" tell ");
            out.v4(sender);
        }
        2 => {
            out.put("Reply ");
            out.v4(sender);
            out.put(" is-at ");
            out.mac(sender_mac);
        }
        3 => {
            out.put("Reverse Request who-is ");
            out.mac(target_mac);
            out.put(" tell ");
            out.mac(sender_mac);
        }
        4 => {
            out.put("Reverse Reply ");
            out.mac(target_mac);
            out.put(" at ");
            out.v4(target);
        }
        other => {
            out.put("Unknown (");
            out.dec(other);
            out.put(")");
        }
    }
    line.length(packet.len());
}
