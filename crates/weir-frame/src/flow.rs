//! The flow key: the fields that decide whether two frames belong to the same flow.
//!
//! Source: RFC 7011 section 2 (flow key), RFC 5103 section 2 (the reverse direction of a biflow).

use crate::headers::{Addresses, Fragment, FrameView, Ip, Upper, protocol};
use std::fmt;

/// The 5-tuple of one direction.
///
/// | field | IPFIX information element |
/// |---|---|
/// | `addresses` | sourceIPv4Address 8, destinationIPv4Address 12, or 27 and 28 for IPv6 |
/// | `src_port`, `dst_port` | sourceTransportPort 7, destinationTransportPort 11 |
/// | `protocol` | protocolIdentifier 4: for IPv6, the one after the extension headers |
///
/// The ports are 0 for protocols other than TCP, UDP, UDP-Lite, SCTP and DCCP (ICMP has ports 0, too, so that request
/// and reply are one biflow), in fragments after the first, and in frames that are cut off before the ports. So the
/// fragments of a packet, except for the first, are a flow of their own. VLAN ids and the interface are not part of
/// the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// Source and destination address.
    pub addresses: Addresses,
    /// Source port, or 0.
    pub src_port: u16,
    /// Destination port, or 0.
    pub dst_port: u16,
    /// Protocol above IP and its extension headers.
    pub protocol: u8,
}

impl FlowKey {
    /// Returns whether the ports of the flow are known. They are not if its protocol has none, or if only fragments
    /// without ports were seen. A flow whose ports are really both 0 cannot be told from these.
    #[must_use]
    pub const fn has_known_ports(&self) -> bool {
        has_ports(self.protocol) && (self.src_port | self.dst_port) != 0
    }

    /// Returns the key of a frame, or `None` if it has no IP header with both addresses.
    #[must_use]
    #[inline]
    pub fn of(view: &FrameView<'_>) -> Option<FlowKey> {
        view.ip().map(FlowKey::of_ip)
    }

    /// Returns the key of a packet.
    #[must_use]
    #[inline]
    pub fn of_ip(ip: &Ip) -> FlowKey {
        let (src_port, dst_port) = match ip.upper {
            Upper::Ports { src, dst } => (src, dst),
            Upper::Icmp { .. } | Upper::Unknown => (0, 0),
        };
        FlowKey { addresses: ip.addresses, src_port, dst_port, protocol: ip.protocol }
    }

    /// Returns the key of the opposite direction: source and destination are exchanged.
    #[must_use]
    pub const fn reversed(self) -> FlowKey {
        let addresses = match self.addresses {
            Addresses::V4 { src, dst } => Addresses::V4 { src: dst, dst: src },
            Addresses::V6 { src, dst } => Addresses::V6 { src: dst, dst: src },
        };
        FlowKey { addresses, src_port: self.dst_port, dst_port: self.src_port, ..self }
    }

    /// Returns a hash that is the same for both directions; all its bits can be used.
    ///
    /// The value must never change: programs in the kernel (`bpf/flow.h`) and other processes use it, and
    /// [`shard_hash`], to agree on who takes which flow. It has no secret, so a sender of frames can create
    /// collisions. A table that must withstand such a sender limits its chains, or hashes the key with a secret of
    /// its own.
    #[must_use]
    #[inline]
    pub fn symmetric_hash(&self) -> u64 {
        let (src, dst) = match self.addresses {
            Addresses::V4 { src, dst } => (u64::from(src.to_bits()), u64::from(dst.to_bits())),
            Addresses::V6 { src, dst } => (fold_v6(src.to_bits()), fold_v6(dst.to_bits())),
        };
        let src = multiply_fold(src ^ MIX[0], u64::from(self.src_port) ^ MIX[1]);
        let dst = multiply_fold(dst ^ MIX[0], u64::from(self.dst_port) ^ MIX[1]);
        // The two ends in numeric order: this makes both directions equal.
        let (low, high) = if src < dst { (src, dst) } else { (dst, src) };
        let ends = multiply_fold(low ^ MIX[2], high ^ MIX[3]);
        multiply_fold(ends ^ u64::from(self.protocol), MIX[1])
    }
}

/// Returns the hash that distributes the frames of a link to shards (`eth0@2/4`) and selects samples.
///
/// It is [`FlowKey::symmetric_hash`], with one difference: of all fragments of a packet, including the first, only
/// the addresses are hashed, so that the fragments stay together. Later fragments do not contain the ports, nor
/// always the protocol. So fragments of a connection may come to another shard than its whole packets. Frames without
/// a flow key have the hash 0, and come to the first shard.
#[must_use]
#[inline]
pub fn shard_hash(view: &FrameView<'_>) -> u64 {
    let Some(ip) = view.ip() else { return 0 };
    let key = match ip.fragment {
        Fragment::Whole => FlowKey::of_ip(ip),
        Fragment::First | Fragment::Later { .. } => {
            FlowKey { addresses: ip.addresses, src_port: 0, dst_port: 0, protocol: 0 }
        }
    };
    key.symmetric_hash()
}

/// Odd constants with as many ones as zeros. Source: wyhash, final version 4 (public domain).
const MIX: [u64; 4] =
    [0x2d35_8dcc_aa6c_78a5, 0x8bb8_4b93_962e_acc9, 0x4b33_a62e_d433_d4a3, 0x4d5a_2da5_1de1_aa47];

#[inline]
fn fold_v6(address: u128) -> u64 {
    multiply_fold((address >> 64) as u64 ^ MIX[2], address as u64 ^ MIX[3])
}

/// Returns the two halves of a 128-bit product, combined by xor: the mixing step of wyhash.
#[inline]
fn multiply_fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// Formats the key as `10.0.0.1:4242 > 10.0.0.2:80 udp`; addresses alone if both ports are 0; IPv6 as
/// `[2001:db8::1]:53`.
impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.src_port, self.dst_port);
        match (self.addresses, from | to) {
            (Addresses::V4 { src, dst }, 0) => write!(f, "{src} > {dst}")?,
            (Addresses::V6 { src, dst }, 0) => write!(f, "{src} > {dst}")?,
            (Addresses::V4 { src, dst }, _) => write!(f, "{src}:{from} > {dst}:{to}")?,
            (Addresses::V6 { src, dst }, _) => write!(f, "[{src}]:{from} > [{dst}]:{to}")?,
        }
        match protocol_name(self.protocol) {
            Some(name) => write!(f, " {name}"),
            None => write!(f, " protocol {}", self.protocol),
        }
    }
}

/// Returns whether the keys of a protocol have ports.
#[must_use]
pub const fn has_ports(number: u8) -> bool {
    use protocol::*;
    matches!(number, TCP | UDP | UDP_LITE | SCTP | DCCP)
}

/// Returns the usual short name of a protocol number.
#[must_use]
pub const fn protocol_name(number: u8) -> Option<&'static str> {
    use protocol::*;
    Some(match number {
        HOP_BY_HOP => "hopopt",
        ICMP => "icmp",
        IGMP => "igmp",
        TCP => "tcp",
        UDP => "udp",
        DCCP => "dccp",
        IPV6 => "ipv6",
        ROUTING => "ipv6-route",
        FRAGMENT => "ipv6-frag",
        GRE => "gre",
        ESP => "esp",
        AH => "ah",
        ICMPV6 => "icmp6",
        DESTINATION_OPTIONS => "ipv6-opts",
        OSPF => "ospf",
        SCTP => "sctp",
        UDP_LITE => "udplite",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// DNS query over UDP, IPv4.
    #[rustfmt::skip]
    const DNS: [u8; 46] = [
        0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0,
        0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        0x10, 0x92, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4,
    ];

    fn v4(last: [u8; 2], ports: [u16; 2], protocol: u8) -> FlowKey {
        let [src, dst] = last.map(|l| Ipv4Addr::new(10, 0, 0, l));
        let addresses = Addresses::V4 { src, dst };
        FlowKey { addresses, src_port: ports[0], dst_port: ports[1], protocol }
    }

    fn any_key() -> impl Strategy<Value = FlowKey> {
        (any::<[u128; 2]>(), any::<bool>(), any::<[u16; 2]>(), any::<u8>()).prop_map(
            |(ends, six, [src_port, dst_port], protocol)| {
                let [src, dst] = ends.map(Ipv6Addr::from);
                let addresses = if six {
                    Addresses::V6 { src, dst }
                } else {
                    let [src, dst] = ends.map(|e| Ipv4Addr::from(e as u32));
                    Addresses::V4 { src, dst }
                };
                FlowKey { addresses, src_port, dst_port, protocol }
            },
        )
    }

    #[test]
    fn a_real_frame_has_its_key() {
        let key = FlowKey::of(&FrameView::parse(&DNS)).unwrap();
        assert_eq!(key, v4([1, 2], [4242, 53], 17));
        assert_eq!(key.to_string(), "10.0.0.1:4242 > 10.0.0.2:53 udp");
        assert_eq!(key.reversed().to_string(), "10.0.0.2:53 > 10.0.0.1:4242 udp");
        let cut = FlowKey::of(&FrameView::parse(&DNS[..36])).unwrap();
        assert_eq!(cut, v4([1, 2], [0, 0], 17));
        assert_eq!(FlowKey::of(&FrameView::parse(&DNS[..33])), None);
    }

    #[test]
    fn text_fits_every_kind_of_key() {
        assert_eq!(v4([1, 2], [0, 0], 1).to_string(), "10.0.0.1 > 10.0.0.2 icmp");
        assert_eq!(v4([1, 2], [0, 0], 99).to_string(), "10.0.0.1 > 10.0.0.2 protocol 99");
        let (src, dst) = ("2001:db8::1".parse().unwrap(), "::1".parse().unwrap());
        let mut key = v4([1, 2], [4242, 80], 6);
        key.addresses = Addresses::V6 { src, dst };
        assert_eq!(key.to_string(), "[2001:db8::1]:4242 > [::1]:80 tcp");
    }

    #[test]
    fn the_symmetric_hash_is_fixed_for_good() {
        assert_eq!(v4([1, 2], [4242, 80], 6).symmetric_hash(), 0x0fd9_ba55_07a5_75f9);
        let (src, dst) = ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let addresses = Addresses::V6 { src, dst };
        let key = FlowKey { addresses, src_port: 4242, dst_port: 80, protocol: 17 };
        assert_eq!(key.symmetric_hash(), 0xd3c6_8959_53e6_2e56);
    }

    /// The parts of one UDP packet that was sent in `DNS`'s flow, and a whole packet of that flow.
    #[test]
    fn fragments_stay_together() {
        let with_word = |word: u16| {
            let mut frame = DNS;
            frame[20..22].copy_from_slice(&word.to_be_bytes());
            shard_hash(&FrameView::parse(&frame))
        };
        let (first, middle, last) = (with_word(0x2000), with_word(0x2004), with_word(8));
        assert_eq!((first, last), (middle, middle));
        let whole = with_word(0);
        assert_eq!(whole, v4([1, 2], [4242, 53], 17).symmetric_hash());
        assert_eq!(middle, v4([2, 1], [0, 0], 0).symmetric_hash());
        assert_ne!(whole, middle);
        assert_eq!(shard_hash(&FrameView::parse(&DNS[..33])), 0);
    }

    #[test]
    fn flows_that_differ_little_spread_evenly() {
        let mut hashes = HashSet::new();
        let (mut by_low, mut by_high) = ([0u32; 16], [0u32; 16]);
        for host in 0..=255 {
            for port in 0..256 {
                let hash = v4([host, 2], [1024 + port, 80], 6).symmetric_hash();
                hashes.insert(hash);
                by_low[(hash & 15) as usize] += 1;
                by_high[(hash >> 60) as usize] += 1;
            }
        }
        assert_eq!(hashes.len(), 65_536);
        for count in by_low.into_iter().chain(by_high) {
            assert!((3_700..4_500).contains(&count), "{count} of 4096 expected");
        }
    }

    proptest! {
        #[test]
        fn both_directions_hash_alike(key in any_key()) {
            prop_assert_eq!(key.symmetric_hash(), key.reversed().symmetric_hash());
            prop_assert_eq!(key.reversed().reversed(), key);
        }
    }
}
