//! UDP datagrams in Ethernet frames, to addresses of the caller's choice: numbered, or with a payload.
//!
//! ```text
//! destination, source MAC; VLAN tags; EtherType
//! IPv4: no options, TTL 64, DF, id 0, checksum; or IPv6: hop limit 64, no extension headers
//! UDP: checksum over all of it
//! frame number, u64 big-endian; CLOCK_TAI when the frame was made, ns, u64 big-endian, or zero; zeros
//!     or: the payload
//! ```
//! Source: RFC 768 (UDP), 791 and 8200 (IP), 1071 (checksum), IEEE 802.1Q and 802.1ad (tags).

pub mod typed;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{fold, word_sum};
use crate::headers::{ETHERNET_BYTES, protocol};

const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// The largest packet: the maximum of the length field of IPv4; IPv6 could have 40 bytes more.
const PACKET_BYTES_MAX: usize = 65_535;
/// The smallest Ethernet frame without FCS.
const FRAME_BYTES_MIN: usize = 60;
const NUMBER_BYTES: usize = 8;
const STAMP_BYTES: usize = 8;
/// Most tags of a frame: the second one is for VLANs of providers. Source: IEEE 802.1ad.
const TAGS_MAX: usize = 2;
/// Highest usable VLAN ID: 4,095 is reserved. Source: IEEE 802.1Q, table 9-2.
const VLAN_MAX: u16 = 4_094;

/// Source addresses that are derived from the flow number: 198.18.0.0/15, for tests of network devices (RFC 2544).
const SOURCES: u32 = 0xc612_0000;
const SOURCE_BITS: u32 = 17;
/// Lowest of the source ports that are derived from the flow number.
const PORTS: u16 = 0x8000;
const PORT_BITS: u32 = 15;
/// 2001:2::/48, the range for tests with IPv6 (RFC 5180). The last 4 bytes are those of the IPv4 address.
const SOURCES_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0);

/// The default source MAC address: locally administered, "WEIR" in the middle.
pub const SOURCE_MAC: [u8; 6] = *b"\x02\x57\x45\x49\x52\x01";
/// The default destination MAC address. No device has it, so a network stack that receives the frame drops it early.
pub const DESTINATION_MAC: [u8; 6] = *b"\x02\x57\x45\x49\x52\x02";
/// The default IPv4 destination: TEST-NET-1, RFC 5737.
pub const DESTINATION: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The default IPv6 destination: documentation, RFC 3849.
pub const DESTINATION_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// Returns the default destination of datagrams with this source: of the same family, IPv4 if there is no source.
#[must_use]
pub fn destination_for(source: Option<IpAddr>) -> IpAddr {
    match source {
        Some(IpAddr::V6(_)) => DESTINATION_V6.into(),
        _ => DESTINATION.into(),
    }
}

/// The default destination port: discard.
pub const DESTINATION_PORT: u16 = 9;

/// Destination, source and contents of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addressing {
    /// Source Ethernet address.
    pub source_mac: [u8; 6],
    /// Destination Ethernet address.
    pub destination_mac: [u8; 6],
    /// VLAN IDs, the outer one first: none, one (0x8100) or two (0x88a8, 0x8100).
    pub vlans: Vec<u16>,
    /// Source address; `None`: derived from the flow number, in 198.18.0.0/15 or 2001:2::/48.
    pub source: Option<IpAddr>,
    /// Destination address.
    pub destination: IpAddr,
    /// Source port; `None`: derived from the flow number, from 32768 on.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: u16,
    /// Payload of each datagram; `None`: the number of the frame.
    pub payload: Option<Payload>,
}

/// A payload that is the same in each datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether the zeros between the payload and the end of the frame belong to the datagram. If not, they are
    /// Ethernet padding.
    pub is_filled: bool,
}

/// Offsets of the fields in the frames of an [`Addressing`], and the parts of the checksums that are the same in all
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Offset of the payload, which is the end of the headers.
    pub payload_at: usize,
    /// Offset of the UDP header.
    pub udp_at: usize,
    /// Offset of the last 4 bytes of the source address.
    pub source_at: usize,
    /// Offset of the header checksum of IPv4; `None`: IPv6.
    pub ip_check_at: Option<usize>,
    /// Offset of the length field of the IP header.
    pub ip_bytes_at: usize,
    /// Bytes of the frame that the length field does not count.
    pub ip_bytes_less: usize,
    /// Whether the source address is derived from the flow number.
    pub varies_source: bool,
    /// Whether the source port is derived from the flow number.
    pub varies_port: bool,
    /// Whether the payload begins with the frame number.
    pub has_number: bool,
    /// Sum of the words of the IPv4 header, without the checksum and an address that is derived from the flow number.
    pub ip_sum: u32,
    /// Sum of the words of pseudo-header, UDP header and payload, without the parts that are derived from the flow
    /// number, the frame number and the timestamp.
    pub udp_sum: u32,
}

impl Addressing {
    /// Checks that frames can be made with these values; the error names the values that are possible.
    ///
    /// # Errors
    /// A text for the user.
    pub fn check(&self) -> Result<(), String> {
        if let Some(source) = self.source
            && source.is_ipv4() != self.destination.is_ipv4()
        {
            let to = self.destination;
            return Err(format!("{source} and {to} are not of one family: IPv4 or IPv6"));
        }
        if self.vlans.len() > TAGS_MAX {
            return Err("a frame has two VLAN tags at most".to_owned());
        }
        if let Some(id) = self.vlans.iter().find(|id| **id > VLAN_MAX) {
            return Err(format!("VLAN {id}: the IDs are 0 to {VLAN_MAX}"));
        }
        let bytes_max = PACKET_BYTES_MAX - V6_BYTES - UDP_BYTES;
        match &self.payload {
            Some(payload) if payload.bytes.len() > bytes_max => {
                Err(format!("a payload has {bytes_max} bytes at most"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that there are enough different 5-tuples for so many flows.
    ///
    /// # Errors
    /// A text for the user.
    pub fn check_flows(&self, flows: u64) -> Result<(), String> {
        let flows_max = self.flows_max();
        if flows <= flows_max {
            return Ok(());
        }
        Err(format!(
            "with this source address or port there are {flows_max} flows at most; leave the source address or port \
             out, or ask for no more"
        ))
    }

    /// Returns the number of different 5-tuples.
    #[must_use]
    pub fn flows_max(&self) -> u64 {
        let source_bits = if self.source.is_none() { SOURCE_BITS } else { 0 };
        let port_bits = if self.source_port.is_none() { PORT_BITS } else { 0 };
        1 << (source_bits + port_bits)
    }

    /// Returns the length of the shortest frame, without FCS, that has space for headers and payload, with a
    /// timestamp or without.
    #[must_use]
    pub fn frame_bytes_min(&self, stamp: bool) -> usize {
        let payload = match &self.payload {
            Some(payload) => payload.bytes.len(),
            None => NUMBER_BYTES + if stamp { STAMP_BYTES } else { 0 },
        };
        (self.payload_at() + payload).max(FRAME_BYTES_MIN)
    }

    /// Returns the length of the longest frame, without FCS.
    #[must_use]
    pub fn frame_bytes_max(&self) -> usize {
        self.link_bytes() + PACKET_BYTES_MAX
    }

    fn link_bytes(&self) -> usize {
        ETHERNET_BYTES + 4 * self.vlans.len()
    }

    fn ip_header_bytes(&self) -> usize {
        if self.destination.is_ipv4() { V4_BYTES } else { V6_BYTES }
    }

    fn payload_at(&self) -> usize {
        self.link_bytes() + self.ip_header_bytes() + UDP_BYTES
    }

    fn link_header(&self) -> Vec<u8> {
        let mut header = [self.destination_mac, self.source_mac].concat();
        for (id, is_inner) in self.vlans.iter().zip((0..self.vlans.len()).rev().map(|n| n == 0)) {
            header.extend(if is_inner { [0x81, 0x00] } else { [0x88, 0xa8] });
            header.extend(id.to_be_bytes());
        }
        header.extend(if self.destination.is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
        header
    }

    fn ip_header(&self, upper_bytes: u16) -> Vec<u8> {
        match self.destination {
            IpAddr::V4(to) => {
                let from = match self.source {
                    Some(IpAddr::V4(from)) => from,
                    _ => Ipv4Addr::UNSPECIFIED,
                };
                let mut header = vec![0x45, 0];
                header.extend((upper_bytes + V4_BYTES as u16).to_be_bytes());
                header.extend([0, 0, 0x40, 0, 64, protocol::UDP, 0, 0]);
                header.extend([from.octets(), to.octets()].concat());
                header
            }
            IpAddr::V6(to) => {
                let from = match self.source {
                    Some(IpAddr::V6(from)) => from,
                    _ => SOURCES_V6,
                };
                let mut header = vec![0x60, 0, 0, 0];
                header.extend(upper_bytes.to_be_bytes());
                header.extend([protocol::UDP, 64]);
                header.extend([from.octets(), to.octets()].concat());
                header
            }
        }
    }
}

/// Makes frames of one size.
#[derive(Clone, Debug)]
pub struct Datagrams {
    frame: Vec<u8>,
    form: Form,
}

impl Datagrams {
    /// Creates a generator of frames of `frame_bytes` bytes, FCS not counted: [`Addressing::frame_bytes_min`] to
    /// [`Addressing::frame_bytes_max`]. The caller has checked the addressing.
    #[must_use]
    pub fn new(addressing: &Addressing, frame_bytes: usize) -> Datagrams {
        let least = addressing.frame_bytes_min(false);
        assert!((least..=addressing.frame_bytes_max()).contains(&frame_bytes), "checked before");
        let (link_bytes, payload_at) = (addressing.link_bytes(), addressing.payload_at());
        let udp_at = payload_at - UDP_BYTES;
        let payload = addressing.payload.as_ref();
        let end = match payload {
            Some(payload) if !payload.is_filled => payload_at + payload.bytes.len(),
            _ => frame_bytes,
        };
        let udp_bytes = (end - udp_at) as u16;
        let mut frame = addressing.link_header();
        frame.extend(addressing.ip_header(udp_bytes));
        frame.extend(addressing.source_port.unwrap_or(0).to_be_bytes());
        frame.extend(addressing.destination_port.to_be_bytes());
        frame.extend(udp_bytes.to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(payload.map_or(&[][..], |payload| &payload.bytes));
        frame.resize(frame_bytes, 0);
        let is_v4 = addressing.destination.is_ipv4();
        let addresses_at = if is_v4 { link_bytes + 12 } else { link_bytes + 8 };
        let pseudo = u64::from(protocol::UDP) + u64::from(udp_bytes);
        let form = Form {
            payload_at,
            udp_at,
            source_at: addresses_at + if is_v4 { 0 } else { 12 },
            ip_check_at: is_v4.then_some(link_bytes + 10),
            ip_bytes_at: link_bytes + if is_v4 { 2 } else { 4 },
            ip_bytes_less: link_bytes + if is_v4 { 0 } else { V6_BYTES },
            varies_source: addressing.source.is_none(),
            varies_port: addressing.source_port.is_none(),
            has_number: payload.is_none(),
            ip_sum: if is_v4 { word_sum(&frame[link_bytes..udp_at]) as u32 } else { 0 },
            // Addresses and UDP header are adjacent. The sum of the words of a packet, 64 KiB at most, does not
            // overflow.
            udp_sum: (pseudo + word_sum(&frame[addresses_at..end])) as u32,
        };
        Datagrams { frame, form }
    }

    /// Returns the template of all frames.
    #[must_use]
    pub fn blank(&self) -> &[u8] {
        &self.frame
    }

    /// Returns the offsets of the fields in the frames.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Turns a copy of [`blank`](Datagrams::blank), or a frame that this function has written, into the frame of this
    /// flow, number and timestamp; a timestamp of 0 is not written.
    pub fn write(&self, frame: &mut [u8], flow: u32, number: u64, stamp: u64) {
        let form = &self.form;
        let (source, port) = match form.varies_source && form.varies_port {
            true => flow_of(flow),
            false => lowest_of(flow),
        };
        let (mut ip_sum, mut udp_sum) = (u64::from(form.ip_sum), u64::from(form.udp_sum));
        if form.varies_source {
            frame[form.source_at..][..4].copy_from_slice(&source.to_be_bytes());
            let words = u64::from((source >> 16) + (source & 0xffff));
            (ip_sum, udp_sum) = (ip_sum + words, udp_sum + words);
        }
        if form.varies_port {
            frame[form.udp_at..][..2].copy_from_slice(&port.to_be_bytes());
            udp_sum += u64::from(port);
        }
        if form.has_number {
            frame[form.payload_at..][..NUMBER_BYTES].copy_from_slice(&number.to_be_bytes());
            udp_sum += words_of(number);
            if stamp != 0 {
                let at = form.payload_at + NUMBER_BYTES;
                frame[at..][..STAMP_BYTES].copy_from_slice(&stamp.to_be_bytes());
                udp_sum += words_of(stamp);
            }
        }
        if let Some(at) = form.ip_check_at {
            frame[at..][..2].copy_from_slice(&fold(ip_sum).to_be_bytes());
        }
        // A checksum of 0 would mean that there is none.
        let check = Some(fold(udp_sum)).filter(|check| *check != 0).unwrap_or(0xffff);
        frame[form.udp_at + 6..][..2].copy_from_slice(&check.to_be_bytes());
    }
}

/// Returns source address and port of a flow if both are derived from its number: all 32 bits are used, mixed so that
/// flows look random to a hash.
#[inline]
#[must_use]
pub fn flow_of(flow: u32) -> (u32, u16) {
    let mixed = mix32(flow.wrapping_add(1));
    (SOURCES | mixed >> PORT_BITS, PORTS | (mixed & ((1 << PORT_BITS) - 1)) as u16)
}

/// Returns source address and port of a flow if only one of them is derived from its number: the lowest bits are
/// used, so that as many flows as possible differ.
fn lowest_of(flow: u32) -> (u32, u16) {
    let (source, port) = (flow & ((1 << SOURCE_BITS) - 1), flow & ((1 << PORT_BITS) - 1));
    (SOURCES | source, PORTS | port as u16)
}

/// Returns the image of a number under a bijection of the 32-bit numbers that looks random to a hash.
///
/// Source: Appleby, MurmurHash3 (public domain), `fmix32`. Each step is invertible: a shifted xor by repeating it, a
/// product with an odd number by the inverse modulo 2^32.
#[inline]
fn mix32(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

fn words_of(number: u64) -> u64 {
    (number >> 48) + (number >> 32 & 0xffff) + (number >> 16 & 0xffff) + (number & 0xffff)
}

#[cfg(test)]
#[path = "datagram_tests.rs"]
mod tests;
