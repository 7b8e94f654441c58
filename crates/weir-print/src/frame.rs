//! Writes the line of a frame.

use weir_frame::record::Flags;

use crate::bytes::Bytes;
use crate::dump;
use crate::limits::HEADERS_MAX;
use crate::line::Line;
use crate::next::Next;
use crate::options::{Dump, Options};
use crate::paint::Paint;
use crate::text::Text;
use crate::{link, net, transport};

/// A frame with its metadata.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// LINKTYPE of the frame's interface. Source: tcpdump.org/linktypes.html.
    pub link_type: u16,
    /// The captured bytes, without FCS.
    pub data: &'a [u8],
    /// Length on the wire.
    pub wire_len: u32,
    /// Direction and offload state, if the capture knows them.
    pub flags: Option<Flags>,
}

/// Appends the line of `frame` and, if the options ask for them, lines with its bytes. The last line has no line break.
pub fn write_line(out: &mut Vec<u8>, frame: &Frame<'_>, options: &Options) {
    let wire_len = frame.data.len().max(frame.wire_len as usize);
    let flags = frame.flags.unwrap_or_default();
    let mut line = Line::new(out, *options, flags);
    write_headers(&mut line, frame.link_type, Bytes::new(frame.data, wire_len));
    if line.has_first_fragment {
        line.out.put(" [first fragment]");
    }
    let super_frame = match (flags.has(Flags::SUPER_FRAME), line.has_ip_length_0) {
        (true, _) => " [super-frame]",
        (false, true) => " [super-frame, IP length 0]",
        (false, false) => "",
    };
    if !super_frame.is_empty() {
        line.begin_paint(Some(Paint::Yellow));
        line.out.put(super_frame);
        line.end_paint(Some(Paint::Yellow));
    }
    match options.bytes {
        Dump::None => {}
        Dump::Packet => {
            let at = link::header_bytes(frame.link_type, frame.data);
            dump::write(line.out, frame.data.get(at..).unwrap_or(&[]), options.form);
        }
        Dump::Frame => dump::write(line.out, frame.data, options.form),
    }
}

/// Writes the text of one header after the other.
fn write_headers(line: &mut Line<'_>, link_type: u16, frame: Bytes<'_>) {
    let mut next = link::write(line, link_type, frame);
    for _ in 0..HEADERS_MAX {
        next = match next {
            None => return,
            Some(Next::Ethernet(rest)) => link::ethernet::write(line, rest),
            Some(Next::TypeOrLength(kind, rest)) => link::ethernet::write_payload(line, kind, rest),
            Some(Next::EtherType(kind, rest)) => link::ethernet::write_ethertype(line, kind, rest),
            Some(Next::Ppp(rest)) => link::ppp::write(line, rest),
            Some(Next::Ip(rest)) => match rest.u8(0) {
                Some(first) if first >> 4 == 6 => net::ipv6::write(line, rest),
                _ => net::ipv4::write(line, rest),
            },
            Some(Next::V4(rest)) => net::ipv4::write(line, rest),
            Some(Next::V6(rest)) => net::ipv6::write(line, rest),
            Some(Next::Mpls(rest)) => net::mpls::write(line, rest),
            Some(Next::Above(protocol, above)) => transport::write(line, protocol, above),
        };
    }
    if next.is_some() {
        line.out.put("[too many headers]");
    }
}

#[cfg(test)]
mod tests;
