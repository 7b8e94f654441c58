//! Entries that can be blocked.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_frame::flow::FlowKey;

/// One entry of a block list. Entries with the same meaning are equal: a flow and its reverse, an address and the
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
    /// Returns the prefix with the first `bits` bits of this address; `None` if the address has fewer bits.
    #[must_use]
    pub fn around(address: IpAddr, bits: u8) -> Option<Entry> {
        if bits > width(address) {
            return None;
        }
        Entry::prefix(masked(address, bits), bits)
    }

    /// Returns the entry for all addresses that begin with the first `bits` bits of `base`; `None` if `base` has fewer
    /// bits, or has later bits set.
    #[must_use]
    pub fn prefix(base: IpAddr, bits: u8) -> Option<Entry> {
        let width = width(base);
        if bits == width {
            return Some(Entry::Address(base));
        }
        (bits < width && masked(base, bits) == base).then_some(Entry::Prefix(Prefix { base, bits }))
    }
}

/// All addresses with the same first bits: at least two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    /// Zero after the first `bits` bits.
    base: IpAddr,
    /// Fewer bits than the address has.
    bits: u8,
}

impl Prefix {
    /// Returns the lowest address.
    #[must_use]
    pub const fn base(&self) -> IpAddr {
        self.base
    }

    /// Returns the number of common bits.
    #[must_use]
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Returns the prefix of this length that contains the address, which must have more than `bits` bits.
    pub(super) fn around(address: IpAddr, bits: u8) -> Prefix {
        Prefix { base: masked(address, bits), bits }
    }
}

/// A flow, without direction: a connection, or the frames of two addresses and a protocol without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// Its source is the lower end, by address, then by port.
    key: FlowKey,
}

impl Flow {
    /// Creates the flow of frames with this key or its reverse.
    #[must_use]
    #[inline]
    pub fn new(key: FlowKey) -> Flow {
        // Fields are compared in their order: source, then destination, then the ports.
        Flow { key: key.min(key.reversed()) }
    }

    /// Returns the key of one direction, with the lower end (by address, then by port) as the source.
    #[must_use]
    pub const fn key(&self) -> FlowKey {
        self.key
    }
}

/// Returns the number of bits of an address.
pub(super) const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Returns the address with all bits cleared except the first `bits`, which is at most [`width`].
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
