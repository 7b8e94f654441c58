//! The next header, as the present header announces it.

use weir_frame::checksum;

use crate::bytes::Bytes;
use crate::hosts::Hosts;
use crate::line::Line;
use crate::text::Text;

/// The header that comes next, and its bytes with all that follows.
///
/// A protocol's function writes its own words and gives this; one loop goes from header to header. So no protocol needs
/// to know the one inside it, and a frame that repeats itself without end costs a bounded number of steps.
#[derive(Clone, Copy)]
pub enum Next<'a> {
    /// An Ethernet frame.
    Ethernet(Bytes<'a>),
    /// The header that an ethertype names, or the frame of an 802.2 header with this length.
    TypeOrLength(u16, Bytes<'a>),
    /// The header that an ethertype names: lengths are not allowed here.
    EtherType(u16, Bytes<'a>),
    /// PPP from the protocol number on.
    Ppp(Bytes<'a>),
    /// IPv4 or IPv6, as the version says.
    Ip(Bytes<'a>),
    /// IPv4.
    V4(Bytes<'a>),
    /// IPv6.
    V6(Bytes<'a>),
    /// MPLS labels.
    Mpls(Bytes<'a>),
    /// Payload of IP, by its protocol number.
    Above(u8, Above<'a>),
}

/// A payload of IP and what its header said.
#[derive(Clone, Copy)]
pub struct Above<'a> {
    pub hosts: Hosts<'a>,
    pub payload: Bytes<'a>,
    /// The payload is the first part of a longer one.
    pub is_fragment: bool,
    /// The addresses stand in the line already.
    pub has_hosts: bool,
}

impl Above<'_> {
    /// Addresses, unless the line has them.
    pub fn write_hosts(&self, line: &mut Line<'_>) {
        if !self.has_hosts {
            self.hosts.write(line);
        }
    }

    /// Addresses with ports, or ports alone where the addresses stand before extension headers.
    pub fn write_ports(&self, line: &mut Line<'_>, src: u16, dst: u16) {
        if !self.has_hosts {
            return self.hosts.write_with_ports(line, src, dst);
        }
        line.out.dec(src);
        line.out.put(" > ");
        line.out.dec(dst);
        line.out.put(": ");
    }

    /// The checksum that TCP or UDP should have, taken over all but its field at `field_at`; `None` where bytes of it
    /// are missing.
    pub fn checksum(&self, protocol: u8, field_at: usize, len: usize) -> Option<u16> {
        let bytes = self.payload.kept().get(..len)?;
        if self.is_fragment || len < field_at + 2 {
            return None;
        }
        let pseudo = self.hosts.sum() + u64::from(protocol) + len as u64;
        let field = u64::from(u16::from_be_bytes([bytes[field_at], bytes[field_at + 1]]));
        Some(checksum::fold(pseudo + checksum::word_sum(bytes) - field))
    }
}
