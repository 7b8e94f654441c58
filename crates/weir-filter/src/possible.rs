//! Decides whether any frame can pass a program, if only the values that occur in the frames' headers are known.
//!
//! A recorder keeps, for each piece of a file, a set of the addresses, ports and protocols in it. [`possible`] decides
//! by such a set whether the piece has to be read. False positives are possible, false negatives are not: a condition
//! has no true branch only if the field that it compares is known on that way through the program, and [`Facts`] rule
//! out its value. Everything else branches both ways.

mod way;

use std::collections::HashSet;

use crate::insn::*;
use crate::program::Program;
use crate::verify::skips;
pub use way::{IPV6_FRAGMENT, LINK_TYPE_RAW, has_ports, is_arp, is_tag};
use way::{Link, Way};

use crate::limits::WAYS_MAX;

/// A field of a frame's headers, at the places where filter programs look for it.
///
/// Only fields of the outer headers count. A frame has a field if its bytes reach that far, whatever else they contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The type at offset 12 of an Ethernet frame, and the type behind each VLAN tag (at most
    /// [`VLANS_MAX`](weir_frame::headers::VLANS_MAX) of them): 16 bits. A frame of link type raw IP has the type
    /// that belongs to its version.
    EtherType,
    /// The id in a VLAN tag: 12 bits.
    Vlan,
    /// An address in an IPv4 header, or the sender's or target's protocol address of ARP and RARP: 32 bits. Source and
    /// destination alike.
    V4Address,
    /// A word of an address in an IPv6 header; its position, 0 to 3. Source and destination alike.
    V6Word(u8),
    /// The protocol of an IPv4 header, the next header of an IPv6 header, and the next header of the fragment header
    /// right behind that: 8 bits.
    Protocol,
    /// A port of TCP, UDP or SCTP right behind the IPv4 or IPv6 header: 16 bits. Source and destination alike. Later
    /// fragments of IPv4 have none.
    Port,
}

/// A description of some frames.
pub trait Facts {
    /// Returns whether `value` may occur as a field of this kind in any of the frames. The answer `false` must be
    /// certain.
    fn may_have(&self, kind: Kind, value: u32) -> bool;
}

/// Returns whether `program` may accept any of the frames of link type `link_type` that `facts` describe.
///
/// `link_type` is the LINKTYPE of a pcapng interface. Ethernet and raw IP (101) are known; for others, and for
/// programs that ask for the tag beside the bytes, the answer is always `true`.
#[must_use]
pub fn possible<F: Facts + ?Sized>(program: &Program, link_type: u16, facts: &F) -> bool {
    let Some(link) = Link::new(link_type).filter(|_| !program.asks_for_tag()) else { return true };
    let insns = program.insns();
    let mut seen = HashSet::new();
    let mut left = vec![(0, Way::start(link))];
    while let Some((mut at, mut way)) = left.pop() {
        // One straight run of instructions, up to a condition or the end.
        loop {
            let insn = insns[at];
            match insn.code {
                RET_K if insn.k != 0 => return true,
                RET_A if way.may_be_nonzero() => return true,
                RET_K | RET_A => break,
                _ => {}
            }
            let [Some(skip), other] = skips(insn) else { return true };
            let next = at + 1 + skip as usize;
            let Some(other) = other else {
                way.step(insn);
                at = next;
                continue;
            };
            for (holds, to) in [(false, at + 1 + other as usize), (true, next)] {
                let Some(way) = way.branch(insn, holds, facts) else { continue };
                if seen.insert((to, way)) {
                    left.push((to, way));
                }
            }
            // The number of ways grows with the combinations of values that the program compares. Few programs have
            // more than a hundred.
            if seen.len() > WAYS_MAX {
                return true;
            }
            break;
        }
    }
    false
}

#[cfg(test)]
#[path = "possible_tests.rs"]
mod tests;
