//! Computes the index entry of a piece while the frames of the piece are read.
//!
//! Fields are read at the offsets where filter programs read them ([`weir_filter::possible::Kind`]). The headers are
//! not validated, because a filter program does not validate them either, and no frame that it accepts may be skipped.

use weir_filter::possible::{IPV6_FRAGMENT, Kind, LINK_TYPE_RAW, has_ports, is_arp, is_tag};
use weir_frame::headers::{VLANS_MAX, ether_type, protocol};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use super::set::{SetBuilder, UNSEEN};
use super::{Piece, Set};

/// Bytes of a frame that [`Scan::add`] reads. Four tags, the longest IPv4 header and the ports need 94.
pub const HEAD_BYTES: usize = 128;
const TYPE_AT: usize = 12;

/// Computes the index entries of pieces, frame by frame.
///
/// Memory is allocated at creation; each finished piece allocates its set.
#[derive(Debug)]
pub struct Scan {
    frames: u32,
    first_ns: u64,
    last_ns: u64,
    set: SetBuilder,
    /// Whether the fields of a frame are not known, so that the set must contain everything.
    is_everything: bool,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan::new()
    }
}

impl Scan {
    /// Creates a scan at the beginning of a piece.
    #[must_use]
    pub fn new() -> Scan {
        Scan { frames: 0, first_ns: 0, last_ns: 0, set: SetBuilder::new(), is_everything: false }
    }

    /// Adds a frame: `head` is its first [`HEAD_BYTES`] or more, or all of its `caplen` bytes if they are fewer.
    /// `ts_ns` is in nanoseconds since the Unix epoch, `link_type` is the LINKTYPE of its interface.
    ///
    /// If `head` is shorter, this has the effect of [`add_unknown`](Self::add_unknown).
    #[inline]
    pub fn add(&mut self, ts_ns: u64, link_type: u16, head: &[u8], caplen: u32) {
        self.count(ts_ns);
        self.is_everything |= head.len() < HEAD_BYTES.min(caplen as usize);
        match link_type {
            LINKTYPE_ETHERNET => self.ethernet(head),
            LINK_TYPE_RAW => self.raw(head),
            // Sets are not used for other link types.
            _ => {}
        }
    }

    /// Adds a frame of which only the time is known. The piece's set then contains everything.
    pub fn add_unknown(&mut self, ts_ns: u64) {
        self.count(ts_ns);
        self.is_everything = true;
    }

    /// Discards the frames since the last piece.
    pub fn discard(&mut self) {
        if self.frames > 0 {
            self.finish(0, 0);
        }
    }

    /// Returns the entry of the piece of `bytes` bytes at offset `at`, with all frames since the last piece. The next
    /// frame begins another piece.
    pub fn finish(&mut self, at: u64, bytes: u32) -> Piece {
        let set = self.set.finish();
        let set = if self.is_everything { Set::everything() } else { set };
        let piece = Piece {
            at,
            bytes,
            frames: self.frames,
            first_ns: self.first_ns,
            last_ns: self.last_ns,
            set,
        };
        (self.frames, self.first_ns, self.last_ns) = (0, 0, 0);
        self.is_everything = false;
        piece
    }

    #[inline]
    fn count(&mut self, ts_ns: u64) {
        self.first_ns = if self.frames == 0 { ts_ns } else { self.first_ns.min(ts_ns) };
        self.last_ns = self.last_ns.max(ts_ns);
        self.frames += 1;
    }

    #[inline]
    fn ethernet(&mut self, head: &[u8]) {
        let Some(ether_type) = be16(head, TYPE_AT) else { return };
        self.set.insert(Kind::EtherType, ether_type.into());
        match ether_type {
            ether_type::IPV4 => self.v4(head, TYPE_AT + 2),
            ether_type::IPV6 => self.v6(head, TYPE_AT + 2),
            _ => self.other(head, ether_type),
        }
    }

    /// Adds the fields of frames with VLAN tags, and of frames that are not IP.
    #[inline(never)]
    fn other(&mut self, head: &[u8], mut ether_type: u16) {
        let mut at = TYPE_AT + 2;
        for _ in 0..VLANS_MAX {
            if !is_tag(ether_type) {
                break;
            }
            let Some(tci) = be16(head, at) else { return };
            self.set.insert(Kind::Vlan, u32::from(tci & 0x0fff));
            let Some(next) = be16(head, at + 2) else { return };
            self.set.insert(Kind::EtherType, next.into());
            (ether_type, at) = (next, at + 4);
        }
        match ether_type {
            ether_type::IPV4 => self.v4(head, at),
            ether_type::IPV6 => self.v6(head, at),
            _ if is_arp(ether_type) => {
                self.put(Kind::V4Address, be32(head, at + 14));
                self.put(Kind::V4Address, be32(head, at + 24));
            }
            _ => {}
        }
    }

    fn raw(&mut self, head: &[u8]) {
        match head.first().map(|first| first >> 4) {
            Some(4) => {
                self.set.insert(Kind::EtherType, ether_type::IPV4.into());
                self.v4(head, 0);
            }
            Some(6) => {
                self.set.insert(Kind::EtherType, ether_type::IPV6.into());
                self.v6(head, 0);
            }
            _ => {}
        }
    }

    fn put(&mut self, kind: Kind, value: Option<u32>) {
        if let Some(value) = value {
            self.set.insert(kind, value);
        }
    }

    fn ports(&mut self, head: &[u8], at: usize) {
        for port in [be16(head, at), be16(head, at + 2)].into_iter().flatten() {
            self.set.insert_port(port);
        }
    }

    #[inline]
    fn v4(&mut self, head: &[u8], at: usize) {
        let plain = head.get(at..).and_then(<[u8]>::first_chunk::<24>);
        let plain = plain
            .filter(|ip| ip[0] & 0x0f == 5 && has_ports(ip[9]) && ip[6] & 0x1f == 0 && ip[7] == 0);
        let Some(ip) = plain else { return self.v4_other(head, at) };
        let [.., s0, s1, s2, s3, d0, d1, d2, d3, p0, p1, q0, q1] = *ip;
        self.set.insert(Kind::Protocol, ip[9].into());
        self.set.insert(Kind::V4Address, u32::from_be_bytes([s0, s1, s2, s3]));
        self.set.insert(Kind::V4Address, u32::from_be_bytes([d0, d1, d2, d3]));
        self.set.insert_port(u16::from_be_bytes([p0, p1]));
        self.set.insert_port(u16::from_be_bytes([q0, q1]));
    }

    /// Adds the fields of IPv4 headers that have options, are truncated, belong to fragments, or are followed by a
    /// protocol without ports.
    #[inline(never)]
    fn v4_other(&mut self, head: &[u8], at: usize) {
        self.put(Kind::V4Address, be32(head, at + 12));
        self.put(Kind::V4Address, be32(head, at + 16));
        let (Some(&first), Some(&protocol)) = (head.get(at), head.get(at + 9)) else { return };
        self.set.insert(Kind::Protocol, protocol.into());
        let is_later = be16(head, at + 6).is_none_or(|fragment| fragment & 0x1fff != 0);
        let upper_at = at + 4 * usize::from(first & 0x0f);
        if is_later || protocol == protocol::AH {
            self.unseen();
        } else if has_ports(protocol) {
            self.ports(head, upper_at);
        }
    }

    fn v6(&mut self, head: &[u8], at: usize) {
        for word in 0..8 {
            self.put(Kind::V6Word(word as u8 % 4), be32(head, at + 8 + 4 * word));
        }
        let Some(&next) = head.get(at + 6) else { return };
        self.set.insert(Kind::Protocol, next.into());
        if has_ports(next) {
            self.ports(head, at + 40);
        } else if is_extension(next) {
            self.unseen();
        }
        if next == IPV6_FRAGMENT {
            self.put(Kind::Protocol, head.get(at + 40).copied().map(u32::from));
        }
    }

    /// Records a protocol and ports that a filter program does not find but a flow table may.
    fn unseen(&mut self) {
        self.set.insert(Kind::Protocol, UNSEEN);
        self.set.insert(Kind::Port, UNSEEN);
    }
}

/// Returns whether this is an IPv6 extension header that FrameView skips to find the protocol.
const fn is_extension(next: u8) -> bool {
    use protocol::*;
    matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION_OPTIONS)
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

#[inline]
fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
