//! Whether any frame can pass a program of which no more is known than a few values that occur in its headers.
//!
//! A recorder keeps, for each piece of a file, a set of the addresses, ports and protocols in it. [`possible`] decides
//! by such a set whether the piece has to be read. False positives are possible, false negatives are not.

use crate::program::Program;

/// A field of a frame's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A type of Ethernet, or of what follows a VLAN tag: 16 bits.
    EtherType,
    /// The id in a VLAN tag: 12 bits.
    Vlan,
    /// An address of IPv4, or one that ARP or RARP ask for; source and destination alike: 32 bits.
    V4Address,
    /// A word of an address of IPv6, source and destination alike: 32 bits. Which of the four: 0 to 3.
    V6Word(u8),
    /// The protocol of IPv4, or what an IPv6 header says is next: 8 bits.
    Protocol,
    /// A port of TCP, UDP or SCTP, source and destination alike: 16 bits. Later fragments have none.
    Port,
}

/// What is known of some frames.
pub trait Facts {
    /// Whether `value` may occur as a field of this kind in any of them. `false` is certain.
    fn may_have(&self, kind: Kind, value: u32) -> bool;
}

/// Whether the program may accept any of the frames, of link type `link_type`, that `facts` tells of.
#[must_use]
pub fn possible(_program: &Program, _link_type: u16, _facts: &dyn Facts) -> bool {
    true
}
