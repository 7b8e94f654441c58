//! Splits TCP super-frames into the frames that a NIC would have sent, or had received.
//!
//! With GRO and TSO, frames of up to some hundred KiB pass through the network stack, and are captured. The segments
//! have the headers of the super-frame, with their own sequence number, length, identification, flags and checksums.
//! Other protocols are not split: the bytes of UDP super-frames do not show the ends of the datagrams.
//!
//! Source: `tcp_gso_segment`, `inet_gso_segment`, `ipv6_gso_segment` of Linux; RFC 9293 (TCP), 1071 (checksum), 2675
//! (jumbograms).

use crate::checksum::{fold, word_sum};
use crate::headers::{ETHERNET_BYTES, Ending, Fragment, FrameView, VLANS_MAX, protocol};
use crate::headers::{Ip, Upper};

const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
/// Bytes of the Hop-by-Hop header that Linux adds to IPv6 packets above 65,535 bytes.
const JUMBO_BYTES: usize = 8;
/// Most bytes of headers: Ethernet header, tags, and IP and TCP headers of at most 60 bytes each.
const HEADERS_MAX: usize = ETHERNET_BYTES + 4 * VLANS_MAX + 60 + 60;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// Result of segmenting a frame.
#[allow(clippy::large_enum_variant, reason = "it lives as long as one frame is looked at")]
pub enum Segmentation<'a> {
    /// The packet is not longer than the MTU.
    Fits,
    /// The packet is longer, but is not TCP with complete headers.
    Impossible,
    /// The packet is longer, and these segments replace it.
    Segments(Segments<'a>),
}

/// The segments of a frame, in order.
pub struct Segments<'a> {
    headers: [u8; HEADERS_MAX],
    network_at: usize,
    tcp_at: usize,
    headers_end: usize,
    payload: &'a [u8],
    /// Payload bytes of each segment except the last.
    each_bytes: usize,
    next: usize,
}

impl<'a> Segmentation<'a> {
    /// Segments a complete frame into packets of at most `mtu` bytes.
    #[must_use]
    pub fn of(frame: &'a [u8], mtu: usize) -> Segmentation<'a> {
        let view = FrameView::parse(frame);
        if view.packet().len() <= mtu {
            return Segmentation::Fits;
        }
        match Segments::of(&view, mtu) {
            Some(segments) => Segmentation::Segments(segments),
            None => Segmentation::Impossible,
        }
    }
}

impl<'a> Segments<'a> {
    fn of(view: &FrameView<'a>, mtu: usize) -> Option<Segments<'a>> {
        let frame = view.frame();
        let ip = view.ip().filter(|ip| is_whole_tcp(view, ip))?;
        let network_at = frame.len() - view.packet().len();
        let (ip_bytes, skipped) = ip_bytes(view.packet(), ip.upper_at as usize - network_at)?;
        // With an IP length of 0, the packet ends with the frame.
        let end = if ip.packet_end == u32::MAX { frame.len() } else { ip.packet_end as usize };
        let tcp = frame.get(ip.upper_at as usize..end)?;
        let tcp_bytes = usize::from(*tcp.get(12)? >> 4) * 4;
        let (tcp_header, payload) = tcp.split_at_checked(tcp_bytes)?;
        if tcp_bytes < 20 || tcp_header[13] & SYN != 0 {
            return None;
        }
        let each_bytes = mtu.checked_sub(ip_bytes + tcp_bytes).filter(|bytes| *bytes > 0)?;
        let (tcp_at, mut headers) = (network_at + ip_bytes, [0; HEADERS_MAX]);
        let headers_end = tcp_at + tcp_bytes;
        headers.get_mut(..tcp_at)?.copy_from_slice(&frame[..tcp_at]);
        headers.get_mut(tcp_at..headers_end)?.copy_from_slice(tcp_header);
        if skipped > 0 {
            headers[network_at + 6] = protocol::TCP;
        }
        Some(Segments { headers, network_at, tcp_at, headers_end, payload, each_bytes, next: 0 })
    }

    /// The number of segments.
    #[must_use]
    pub fn count(&self) -> usize {
        self.payload.len().div_ceil(self.each_bytes).max(1)
    }

    /// Replaces the contents of `out` by the next segment; `false` if there is none.
    pub fn next_into(&mut self, out: &mut Vec<u8>) -> bool {
        let (number, last) = (self.next, self.count() - 1);
        if number > last {
            return false;
        }
        self.next += 1;
        let from = number * self.each_bytes;
        let to = (from + self.each_bytes).min(self.payload.len());
        out.clear();
        out.extend_from_slice(&self.headers[..self.headers_end]);
        out.extend_from_slice(&self.payload[from..to]);
        let (link, rest) = out.split_at_mut(self.tcp_at);
        let addresses = write_ip(&mut link[self.network_at..], rest.len(), number);
        write_tcp(rest, from, number == 0, number == last, addresses);
        true
    }
}

/// Returns whether the frame contains a complete, unfragmented TCP packet.
fn is_whole_tcp(view: &FrameView<'_>, ip: &Ip) -> bool {
    let is_tcp = ip.protocol == protocol::TCP && matches!(ip.upper, Upper::Ports { .. });
    is_tcp && ip.fragment == Fragment::Whole && view.ending() == Ending::Whole
}

/// Returns the length of the IP header, and of a jumbo header after it, which segments do not have. `headers` is the
/// length of both. `None` if there are other headers or options.
fn ip_bytes(packet: &[u8], headers: usize) -> Option<(usize, usize)> {
    if packet[0] >> 4 == 4 {
        let bytes = usize::from(packet[0] & 15) * 4;
        return (bytes == headers).then_some((bytes, 0));
    }
    match headers - V6_BYTES {
        0 => Some((V6_BYTES, 0)),
        // Next header, length 0 (8 bytes), option 0xc2 of 4 bytes.
        JUMBO_BYTES if packet[6] == protocol::HOP_BY_HOP && packet[41..44] == [0, 0xc2, 4] => {
            Some((V6_BYTES, JUMBO_BYTES))
        }
        _ => None,
    }
}

/// Sets the length in the IP header, and for IPv4 the identification and the checksum. Returns the sum over the
/// addresses.
fn write_ip(ip: &mut [u8], upper_bytes: usize, number: usize) -> u64 {
    if ip[0] >> 4 == 6 {
        ip[4..6].copy_from_slice(&(upper_bytes as u16).to_be_bytes());
        return word_sum(&ip[8..V6_BYTES]);
    }
    let total = (ip.len() + upper_bytes) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let first = u16::from_be_bytes([ip[4], ip[5]]);
    ip[4..6].copy_from_slice(&first.wrapping_add(number as u16).to_be_bytes());
    ip[10..12].fill(0);
    let check = fold(word_sum(ip));
    ip[10..12].copy_from_slice(&check.to_be_bytes());
    word_sum(&ip[12..V4_BYTES])
}

/// Sets sequence number, flags and checksum in the TCP header; the payload follows it.
fn write_tcp(tcp: &mut [u8], offset: usize, is_first: bool, is_last: bool, addresses: u64) {
    let first = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    tcp[4..8].copy_from_slice(&first.wrapping_add(offset as u32).to_be_bytes());
    if !is_last {
        tcp[13] &= !(FIN | PSH);
    }
    if !is_first {
        tcp[13] &= !CWR;
    }
    tcp[16..18].fill(0);
    let pseudo = addresses + u64::from(protocol::TCP) + tcp.len() as u64;
    let check = fold(pseudo + word_sum(tcp));
    tcp[16..18].copy_from_slice(&check.to_be_bytes());
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
