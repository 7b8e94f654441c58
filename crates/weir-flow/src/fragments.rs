//! Ports of fragmented packets: only the first fragment contains them.
//!
//! Source: RFC 791, section 3.2, and RFC 8200, section 4.5: all fragments of a packet have the same addresses and
//! identification; in IPv4 also the same protocol.

use weir_frame::flow::FlowKey;
use weir_frame::headers::ip::EXTENSIONS_MAX;
use weir_frame::headers::{Addresses, Fragment, FrameView, Ip, protocol};

use crate::counters::Counters;
use crate::key::KeyWords;
use crate::keyed_hash::HashKey;
use crate::limits::{FRAGMENTED_PACKETS_MAX, REASSEMBLY_TIME_MAX};

/// Entries in which a packet can be. If all are used, the packet that began first is replaced.
const WAYS: usize = 4;

#[derive(Clone, Copy, Default)]
struct Packet {
    /// Addresses, VLAN and, in place of the ports, the identification. All zero: the entry is empty.
    id: KeyWords,
    ports: [u16; 2],
    protocol: u8,
    began_ns: u64,
}

/// Packets whose first fragment was seen.
pub struct Fragments {
    packets: Vec<[Packet; WAYS]>,
    secret: HashKey,
}

impl Fragments {
    pub fn new(secret: HashKey) -> Fragments {
        Fragments {
            packets: vec![[Packet::default(); WAYS]; FRAGMENTED_PACKETS_MAX / WAYS],
            secret,
        }
    }

    /// Returns the size of the entries in bytes.
    pub fn bytes(&self) -> usize {
        self.packets.len() * size_of::<[Packet; WAYS]>()
    }

    /// Returns the key of a fragment. The key of a first fragment is that of its headers, and its ports are
    /// remembered; a later fragment gets the ports of the first.
    #[cold]
    pub fn key(
        &mut self,
        view: &FrameView<'_>,
        ip: &Ip,
        vlan: Option<u16>,
        now_ns: u64,
        counters: &mut Counters,
    ) -> FlowKey {
        let key = FlowKey::of_ip(ip);
        let later = matches!(ip.fragment, Fragment::Later { .. });
        let Some(number) = identification(view, ip) else {
            counters.fragments_unattributed += u64::from(later);
            return key;
        };
        let protocol = if matches!(ip.addresses, Addresses::V4 { .. }) {
            ip.protocol
        } else {
            protocol::FRAGMENT
        };
        let [src_port, dst_port] = [(number >> 16) as u16, number as u16];
        let id = KeyWords::of(&FlowKey { src_port, dst_port, protocol, ..key }, vlan);
        let set = id.hash(&self.secret) as usize % self.packets.len();
        let places = &mut self.packets[set];
        let is_alive = |packet: &Packet| {
            packet.id != KeyWords::default()
                && now_ns - packet.began_ns <= REASSEMBLY_TIME_MAX.as_nanos() as u64
        };
        let found = places.iter_mut().find(|packet| packet.id == id && is_alive(packet));
        if later {
            let Some(packet) = found else {
                counters.fragments_unattributed += 1;
                return key;
            };
            counters.fragments_attributed += 1;
            let ([src_port, dst_port], protocol) = (packet.ports, packet.protocol);
            return FlowKey { src_port, dst_port, protocol, ..key };
        }
        let packet = Packet {
            id,
            ports: [key.src_port, key.dst_port],
            protocol: key.protocol,
            began_ns: now_ns,
        };
        if let Some(again) = found {
            *again = packet;
        } else if let Some(free) = places.iter_mut().find(|packet| !is_alive(packet)) {
            *free = packet;
        } else if let Some(oldest) = places.iter_mut().min_by_key(|packet| packet.began_ns) {
            counters.fragments_forgotten += 1;
            *oldest = packet;
        }
        key
    }
}

/// Returns the identification of a fragment's packet, if those bytes were captured.
fn identification(view: &FrameView<'_>, ip: &Ip) -> Option<u32> {
    let packet = view.packet();
    if matches!(ip.addresses, Addresses::V4 { .. }) {
        return Some(u32::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?])));
    }
    let (mut next, mut at) = (*packet.get(6)?, 40);
    for _ in 0..EXTENSIONS_MAX {
        let head = packet.get(at..)?.first_chunk::<8>()?;
        match next {
            protocol::FRAGMENT => {
                return Some(u32::from_be_bytes([head[4], head[5], head[6], head[7]]));
            }
            protocol::AH => at += (usize::from(head[1]) + 2) * 4,
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                at += (usize::from(head[1]) + 1) * 8;
            }
            _ => return None,
        }
        next = head[0];
    }
    None
}
