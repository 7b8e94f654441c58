//! The key of a frame as words, which are hashed and compared without conversion.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

use crate::keyed_hash::{Block, HashKey, hash};

const V6: u64 = 1;
const TAGGED: u64 = 2;
const VLAN_SHIFT: u32 = 8;
const PROTOCOL_SHIFT: u32 = 24;
const DST_PORT_SHIFT: u32 = 32;
const SRC_PORT_SHIFT: u32 = 48;

/// A key in 40 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyWords {
    /// IPv4: source and destination in the first word, then zeroes. IPv6: two words for each address.
    pub addresses: [u64; 4],
    /// From the highest bit: ports 16 and 16 bits, protocol 8, 4 unused, VLAN 12, 6 unused, whether tagged, whether
    /// IPv6.
    pub rest: u64,
}

impl KeyWords {
    /// Returns the words of a key, with the VLAN where the VLAN is part of the key.
    #[inline(always)]
    pub fn of(key: &FlowKey, vlan: Option<u16>) -> KeyWords {
        let (addresses, version) = match key.addresses {
            Addresses::V4 { src, dst } => {
                ([u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()), 0, 0, 0], 0)
            }
            Addresses::V6 { src, dst } => {
                let (src, dst) = (src.to_bits(), dst.to_bits());
                ([(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64], V6)
            }
        };
        let vlan = vlan.map_or(0, |vlan| u64::from(vlan & 0xfff) << VLAN_SHIFT | TAGGED);
        let ports =
            u64::from(key.src_port) << SRC_PORT_SHIFT | u64::from(key.dst_port) << DST_PORT_SHIFT;
        KeyWords {
            addresses,
            rest: ports | u64::from(key.protocol) << PROTOCOL_SHIFT | vlan | version,
        }
    }

    /// Returns the last word of an IPv4 key without VLAN, from both ports as they are in the packet and the protocol.
    #[inline(always)]
    pub const fn rest_of(ports: u32, protocol: u8) -> u64 {
        (ports as u64) << DST_PORT_SHIFT | (protocol as u64) << PROTOCOL_SHIFT
    }

    /// Returns the key and the VLAN.
    pub fn parts(self) -> (FlowKey, Option<u16>) {
        let [a, b, c, d] = self.addresses;
        let addresses = if self.is_v6() {
            let of =
                |high: u64, low: u64| Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
            Addresses::V6 { src: of(a, b), dst: of(c, d) }
        } else {
            Addresses::V4 {
                src: Ipv4Addr::from_bits((a >> 32) as u32),
                dst: Ipv4Addr::from_bits(a as u32),
            }
        };
        let key = FlowKey {
            addresses,
            src_port: (self.rest >> SRC_PORT_SHIFT) as u16,
            dst_port: (self.rest >> DST_PORT_SHIFT) as u16,
            protocol: (self.rest >> PROTOCOL_SHIFT) as u8,
        };
        let vlan = (self.rest >> VLAN_SHIFT) as u16 & 0xfff;
        (key, (self.rest & TAGGED != 0).then_some(vlan))
    }

    /// Returns whether the addresses are IPv6.
    #[inline(always)]
    pub fn is_v6(self) -> bool {
        rest_is_v6(self.rest)
    }

    /// Returns the direction whose source sorts first, and whether that is the opposite direction of `self`.
    #[inline(always)]
    pub fn ordered(self) -> (KeyWords, bool) {
        let reversed = self.reversed();
        let end = |key: &KeyWords| (key.addresses, key.rest);
        if end(&reversed) < end(&self) { (reversed, true) } else { (self, false) }
    }

    /// Returns the key of the opposite direction.
    #[inline(always)]
    pub fn reversed(self) -> KeyWords {
        let [a, b, c, d] = self.addresses;
        let addresses = if self.is_v6() { [c, d, a, b] } else { [a.rotate_left(32), 0, 0, 0] };
        let ports = (self.rest >> DST_PORT_SHIFT) as u32;
        let rest = u64::from(ports.rotate_left(16)) << DST_PORT_SHIFT | self.rest & 0xffff_ffff;
        KeyWords { addresses, rest }
    }

    /// Returns the part that is hashed first. For IPv4 this is everything, unless the interface is part of the key.
    /// It contains the last word, which tells whether more blocks follow; in a table by interface, more blocks always
    /// follow.
    #[inline(always)]
    pub fn first_block(&self, interface: Option<u16>) -> Block {
        let low = match interface {
            None if !self.is_v6() => self.addresses[0],
            interface => u64::from(interface.unwrap_or(0)),
        };
        block(low, self.rest)
    }

    /// Returns the part that is hashed after the first block.
    #[inline(always)]
    pub fn other_blocks(&self, interface: Option<u16>) -> Option<[Block; 2]> {
        let [a, b, c, d] = self.addresses;
        (self.is_v6() || interface.is_some()).then(|| [block(a, b), block(c, d)])
    }

    /// Returns the hash of the key.
    pub fn hash(&self, secret: &HashKey) -> u64 {
        let mut blocks = [self.first_block(None)];
        secret.hash_all(&mut blocks, || [self.other_blocks(None)].into_iter());
        hash(&blocks[0])
    }
}

#[inline(always)]
fn block(low: u64, high: u64) -> Block {
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes().into()
}

/// Returns whether the key with this last word is an IPv6 key.
#[inline(always)]
pub fn rest_is_v6(rest: u64) -> bool {
    rest & V6 != 0
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn any_key() -> impl Strategy<Value = FlowKey> {
        (any::<[u128; 2]>(), any::<bool>(), any::<[u16; 2]>(), any::<u8>()).prop_map(
            |([src, dst], six, [src_port, dst_port], protocol)| {
                let addresses = if six {
                    Addresses::V6 { src: Ipv6Addr::from_bits(src), dst: Ipv6Addr::from_bits(dst) }
                } else {
                    let of = |bits: u128| Ipv4Addr::from_bits(bits as u32);
                    Addresses::V4 { src: of(src), dst: of(dst) }
                };
                FlowKey { addresses, src_port, dst_port, protocol }
            },
        )
    }

    proptest! {
        #[test]
        fn words_hold_the_whole_key(key in any_key(), vlan in proptest::option::of(0..4096u16)) {
            let words = KeyWords::of(&key, vlan);
            prop_assert_eq!(words.parts(), (key, vlan));
            prop_assert_eq!(words.reversed(), KeyWords::of(&key.reversed(), vlan));
            let (ordered, swapped) = words.ordered();
            prop_assert_eq!(if swapped { ordered.reversed() } else { ordered }, words);
            prop_assert_eq!(words.reversed().ordered().0, ordered);
        }
    }
}
