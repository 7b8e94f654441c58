//! Entries that can be blocked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_frame::flow::FlowKey;

/// One entry of a block list. Equal meanings are equal entries: a flow and its reverse, an address and the
/// prefix of all its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// Frames from or to this address.
    Address(IpAddr),
    /// Frames from or to any address under this prefix.
    Prefix(Prefix),
    /// Frames of this flow, in both directions.
    Flow(Flow),
}

impl Entry {
    /// The addresses that begin as this one does, for so many bits. `None` if it has not so many.
    #[must_use]
    pub fn around(address: IpAddr, bits: u8) -> Option<Entry> {
        if bits > width(address) {
            return None;
        }
        Entry::prefix(masked(address, bits), bits)
    }

    /// The addresses that begin with the first `bits` of `base`. `None` if there are not so many, or if
    /// `base` has others set.
    #[must_use]
    pub fn prefix(base: IpAddr, bits: u8) -> Option<Entry> {
        let width = width(base);
        if bits == width {
            return Some(Entry::Address(base));
        }
        (bits < width && masked(base, bits) == base).then_some(Entry::Prefix(Prefix { base, bits }))
    }
}

/// All addresses that begin alike; at least two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// Zero behind the first `bits`.
    base: IpAddr,
    /// Fewer than the address has.
    bits: u8,
}

impl Prefix {
    /// The lowest address.
    #[must_use]
    pub const fn base(&self) -> IpAddr {
        self.base
    }

    /// How many bits are the same in all.
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// The prefix of this length that the address is under; `bits` is less than the address has.
    pub(super) fn around(address: IpAddr, bits: u8) -> Prefix {
        Prefix { base: masked(address, bits), bits }
    }
}

/// A connection, or what takes its place in protocols without ports; no direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The lower end is the source: by address, then by port.
    key: FlowKey,
}

impl Flow {
    /// The flow of frames with this key or its reverse.
    #[must_use]
    #[inline]
    pub fn new(key: FlowKey) -> Flow {
        // Fields are compared in their order: source, then destination, then the ports.
        Flow { key: key.min(key.reversed()) }
    }

    /// The key of one direction, with the lower end (by address, then by port) as the source.
    #[must_use]
    pub const fn key(&self) -> FlowKey {
        self.key
    }
}

/// Bits of an address of this version.
pub(super) const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The address with all but its first `bits` zero; `bits` is at most [`width`].
pub(super) fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}
