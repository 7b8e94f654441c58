//! The next header, selected by the present header.

use weir_frame::checksum;

use crate::bytes::Bytes;
use crate::hosts::Hosts;
use crate::line::Line;
use crate::text::Text;

/// The next header, and its bytes with everything after it.
///
/// The function for a protocol writes its text and returns this value; a single loop calls the function for the next
/// header. So no protocol's code depends on the protocols inside it, and even a frame of endlessly nested headers costs
/// a bounded number of steps.
#[derive(Clone, Copy)]
pub enum Next<'a> {
    /// An Ethernet frame.
    Ethernet(Bytes<'a>),
    /// The header of an ethertype, or the 802.2 header of a frame with this length.
    TypeOrLength(u16, Bytes<'a>),
    /// The header of an ethertype; the number is never a length.
    EtherType(u16, Bytes<'a>),
    /// PPP, from the protocol number on.
    Ppp(Bytes<'a>),
    /// IPv4 or IPv6, depending on the version field.
    Ip(Bytes<'a>),
    /// IPv4.
    V4(Bytes<'a>),
    /// IPv6.
    V6(Bytes<'a>),
    /// MPLS labels.
    Mpls(Bytes<'a>),
    /// The payload of an IP packet, with its protocol number.
    Above(u8, Above<'a>),
}

/// The payload of an IP packet, with data from the IP header.
#[derive(Clone, Copy)]
pub struct Above<'a> {
    pub hosts: Hosts<'a>,
    pub payload: Bytes<'a>,
    /// Whether the payload is only the first part of a longer one.
    pub is_fragment: bool,
    /// Whether the addresses were already written.
    pub has_hosts: bool,
}

impl Above<'_> {
    /// Writes the addresses, unless they were already written.
    pub fn write_hosts(&self, line: &mut Line<'_>) {
        if !self.has_hosts {
            self.hosts.write(line);
        }
    }

    /// Writes addresses with ports; or only ports, if the addresses were already written.
    pub fn write_ports(&self, line: &mut Line<'_>, src: u16, dst: u16) {
        if !self.has_hosts {
            return self.hosts.write_with_ports(line, src, dst);
        }
        line.out.dec(src);
        line.out.put(" > ");
        line.out.dec(dst);
        line.out.put(": ");
    }

    /// Returns the correct checksum of TCP or UDP, computed over all bytes except the checksum field at offset
    /// `field_at`. Returns `None` if bytes are missing.
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
