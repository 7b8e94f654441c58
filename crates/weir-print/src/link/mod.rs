//! The link layer: where the first packet of a frame begins.

mod cooked;
pub mod ethernet;
mod llc;
pub mod ppp;

use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Next;
use crate::options::Options;
use crate::text::Text;

/// Link types that are taken apart. Source: tcpdump.org/linktypes.html.
mod link_type {
    pub use weir_frame::pcapng::{
        LINKTYPE_ETHERNET as ETHERNET, LINKTYPE_IPV4 as IPV4, LINKTYPE_IPV6 as IPV6,
        LINKTYPE_LINUX_SLL as LINUX_SLL, LINKTYPE_LINUX_SLL2 as LINUX_SLL2, LINKTYPE_RAW as RAW,
    };

    pub const NULL: u16 = 0;
    pub const PPP: u16 = 9;
    /// Numbers of DLT_RAW on the systems that wrote it into files.
    pub const OLD_RAW: [u16; 2] = [12, 14];
    pub const PPP_HDLC: u16 = 50;
    pub const C_HDLC: u16 = 104;
    pub const LOOP: u16 = 108;
}

pub fn write<'a>(line: &mut Line<'_>, link_type: u16, frame: Bytes<'a>) -> Option<Next<'a>> {
    use link_type::*;
    match link_type {
        ETHERNET => ethernet::write(line, frame),
        RAW => Some(Next::Ip(frame)),
        old if OLD_RAW.contains(&old) => Some(Next::Ip(frame)),
        IPV4 => Some(Next::V4(frame)),
        IPV6 => Some(Next::V6(frame)),
        LINUX_SLL => cooked::write(line, frame),
        LINUX_SLL2 => cooked::write_2(line, frame),
        PPP | PPP_HDLC => ppp::write_framed(line, frame),
        C_HDLC => ppp::write_cisco(line, frame),
        NULL => loopback(line, frame, u32::from_le_bytes),
        LOOP => loopback(line, frame, u32::from_be_bytes),
        other => {
            line.out.put("link type ");
            line.out.dec(other);
            line.length(frame.len());
            None
        }
    }
}

/// An address family of the system that captured, in 4 bytes, then the packet.
fn loopback<'a>(
    line: &mut Line<'_>,
    frame: Bytes<'a>,
    order: fn([u8; 4]) -> u32,
) -> Option<Next<'a>> {
    let Some(head) = frame.head::<4>() else {
        line.cut_off("null");
        return None;
    };
    let (family, packet) = (order(*head), frame.after(4));
    if line.options.link {
        line.out.put("AF ");
        line.out.dec(family);
        line.length(frame.len());
        line.out.put(": ");
    }
    match family {
        2 => Some(Next::V4(packet)),
        // Linux 10; NetBSD and OpenBSD 24, FreeBSD 28, macOS 30.
        10 | 24 | 28 | 30 => Some(Next::V6(packet)),
        other => {
            line.out.put("AF ");
            line.out.dec(other);
            line.length(packet.len());
            None
        }
    }
}

/// Whether a line has the direction that the link layer itself says.
#[must_use]
pub fn has_direction(link_type: u16, options: &Options) -> bool {
    match link_type {
        link_type::LINUX_SLL => options.link,
        link_type::LINUX_SLL2 => true,
        _ => false,
    }
}

/// Bytes of the link layer before the packet, as tcpdump counts them: with tags and with 802.2.
pub fn header_bytes(link_type: u16, frame: &[u8]) -> usize {
    use link_type::*;
    match link_type {
        ETHERNET => ethernet::header_bytes(frame),
        LINUX_SLL => 16,
        LINUX_SLL2 => 20,
        PPP | PPP_HDLC | C_HDLC | NULL | LOOP => 4,
        _ => 0,
    }
}
