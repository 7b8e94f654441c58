//! Prints UDP. DNS and tunnels are recognized by their ports. Source: RFC 768; IANA, "Port Numbers".

use weir_frame::headers::protocol;
use weir_frame::record::Flags;

use super::{geneve, vxlan};
use crate::app::dns;
use crate::line::Line;
use crate::next::{Above, Next};
use crate::text::Text;

const HEADER_BYTES: usize = 8;

pub fn write<'a>(line: &mut Line<'_>, above: Above<'a>) -> Option<Next<'a>> {
    let datagram = above.payload;
    let Some((src, dst)) = datagram.be16(0).zip(datagram.be16(2)) else {
        above.write_hosts(line);
        line.cut_off("udp");
        return None;
    };
    above.write_ports(line, src, dst);
    let Some((len, found)) = datagram.be16(4).zip(datagram.be16(6)) else {
        line.cut_off("udp");
        return None;
    };
    let len = match usize::from(len) {
        // A jumbogram, or a packet that the NIC will segment.
        0 => datagram.len(),
        len => len,
    };
    // In a first fragment, the length is that of the whole datagram.
    if len < HEADER_BYTES || (len > datagram.len() && !above.is_fragment) {
        line.out.put("UDP, bad length ");
        line.out.dec(len.saturating_sub(HEADER_BYTES) as u64);
        line.out.put(" > ");
        line.out.dec(datagram.len().saturating_sub(HEADER_BYTES) as u64);
        return None;
    }
    if line.options.verbose && !line.options.unchecked {
        write_checksum(line, &above, len, found);
    }
    let data = datagram.up_to(len).after(HEADER_BYTES);
    let is = |port: u16| src == port || dst == port;
    if (is(dns::PORT) || is(dns::MULTICAST_PORT)) && data.len() >= dns::HEADER_BYTES {
        let is_multicast = is(dns::MULTICAST_PORT);
        dns::write(line, data, is_multicast, above.is_fragment);
        return None;
    }
    match dst {
        vxlan::PORT | vxlan::OLD_PORT if vxlan::is_it(data) => vxlan::write(line, data),
        geneve::PORT if geneve::is_it(data) => geneve::write(line, data),
        _ => {
            line.out.put("UDP");
            line.length(len - HEADER_BYTES);
            None
        }
    }
}

/// Writes the result of verifying the checksum: `[udp sum ok] `
fn write_checksum(line: &mut Line<'_>, above: &Above<'_>, len: usize, found: u16) {
    if found == 0 {
        return line.out.put("[no cksum] ");
    }
    // A checksum of 0 is transmitted as 0xffff.
    let Some(wanted) =
        above.checksum(protocol::UDP, 6, len).map(|sum| if sum == 0 { !0 } else { sum })
    else {
        return;
    };
    if line.flags.has(Flags::CHECKSUM_NOT_READY) {
        line.out.put("[udp cksum left to the NIC] ");
    } else if found == wanted {
        line.out.put("[udp sum ok] ");
    } else {
        line.out.put("[bad udp cksum ");
        line.out.hex(found, 4);
        line.out.put(" -> ");
        line.out.hex(wanted, 4);
        line.out.put("!] ");
    }
}
