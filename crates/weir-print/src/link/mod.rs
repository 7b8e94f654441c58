//! Prints the link-layer header and finds the packet after it.

mod cooked;
pub mod ethernet;
mod llc;
pub mod ppp;

use crate::bytes::Bytes;
use crate::line::Line;
use crate::next::Next;
use crate::options::Options;
use crate::text::Text;

/// Supported link types. Source: tcpdump.org/linktypes.html.
mod link_type {
    pub use weir_frame::pcapng::{
        LINKTYPE_ETHERNET as ETHERNET, LINKTYPE_IPV4 as IPV4, LINKTYPE_IPV6 as IPV6,
        LINKTYPE_LINUX_SLL as LINUX_SLL, LINKTYPE_LINUX_SLL2 as LINUX_SLL2, LINKTYPE_RAW as RAW,
    };

    pub const NULL: u16 = 0;
    pub const PPP: u16 = 9;
    /// Numbers of DLT_RAW on some systems, which wrote them into files.
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

/// Prints the loopback header: an address family of the capturing system, in 4 bytes.
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
        // AF_INET6: 10 on Linux, 24 on NetBSD and OpenBSD, 28 on FreeBSD, 30 on macOS.
        10 | 24 | 28 | 30 => Some(Next::V6(packet)),
        other => {
            line.out.put("AF ");
            line.out.dec(other);
            line.length(packet.len());
            None
        }
    }
}

/// Returns whether the printed line has the direction from the link-layer header.
#[must_use]
pub fn has_direction(link_type: u16, options: &Options) -> bool {
    match link_type {
        link_type::LINUX_SLL => options.link,
        link_type::LINUX_SLL2 => true,
        _ => false,
    }
}

/// Returns the length of the link-layer headers as tcpdump counts it: with tags and 802.2.
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
