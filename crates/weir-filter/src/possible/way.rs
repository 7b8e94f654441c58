//! One path through a program: the contents of A and X, and what its conditions say about the frame's headers.

use weir_frame::headers::{VLANS_MAX, ether_type, protocol};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use super::{Facts, Kind};
use crate::insn::*;
use crate::interpret::{compute, holds};

/// LINKTYPE_RAW: IPv4 or IPv6 without a link layer.
pub const LINK_TYPE_RAW: u16 = 101;
/// The value of IPv6's next header field for a fragment header, after which filters test the protocol again.
pub const IPV6_FRAGMENT: u8 = protocol::FRAGMENT;
const RARP: u16 = 0x8035;
const TYPE_AT: u32 = 12;
const TAG_BYTES: u32 = 4;
/// If a condition leaves at most this many values of a field, each value is looked up in the [`Facts`]. With more
/// values, at least one look-up would often be a false positive of the set.
const VALUES_MAX: u32 = 16;

/// Returns whether this EtherType announces a VLAN tag.
#[must_use]
pub const fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, ether_type::VLAN | ether_type::SERVICE_VLAN | ether_type::OLD_QINQ)
}

/// Returns whether this EtherType is ARP or RARP.
#[must_use]
pub const fn is_arp(ether_type: u16) -> bool {
    matches!(ether_type, ether_type::ARP | RARP)
}

/// Returns whether [`Kind::Port`] includes the ports of this protocol.
#[must_use]
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// A link type whose frame layout is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Link {
    Ethernet,
    Raw,
}

impl Link {
    pub(super) fn new(link_type: u16) -> Option<Link> {
        match link_type {
            LINKTYPE_ETHERNET => Some(Link::Ethernet),
            LINK_TYPE_RAW => Some(Link::Raw),
            _ => None,
        }
    }
}

/// The network layer, as far as conditions have determined it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Network {
    Unknown,
    V4,
    V6,
    Arp,
}

impl Network {
    fn of(ether_type: u32) -> Network {
        match u16::try_from(ether_type) {
            Ok(ether_type::IPV4) => Network::V4,
            Ok(ether_type::IPV6) => Network::V6,
            Ok(other) if is_arp(other) => Network::Arp,
            _ => Network::Unknown,
        }
    }
}

/// A register's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Value {
    Unknown,
    Constant(u32),
    /// Bytes of the frame, masked.
    Bytes(Bytes),
    /// The length of the IPv4 header that begins at this offset.
    HeaderLength(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Bytes {
    at: u32,
    /// `at` counts from the end of the IPv4 header that begins at this offset; `None`: from the frame's beginning.
    after_v4_header: Option<u32>,
    size: u8,
    mask: u32,
}

/// The header field that some bytes of a frame contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// The EtherType after this many VLAN tags.
    EtherType(u8),
    /// The tag control information of a VLAN tag.
    Tag,
    V4Address,
    V6Word(u8),
    /// The protocol of an IPv4 header, or the next header of an IPv6 header.
    Protocol,
    /// The next header of the fragment header.
    ProtocolOfFragment,
    /// Flags and fragment offset of an IPv4 header.
    Fragment,
    Port,
    /// The first byte of a raw IP packet: the version is in the upper four bits.
    Version,
}

/// One path through a program, up to an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Way {
    link: Link,
    a: Value,
    x: Value,
    /// A is at least `least` and at most `most`.
    least: u32,
    most: u32,
    /// Number of VLAN tags that the frame certainly has.
    tags: u8,
    network: Network,
    protocol: Option<u8>,
    /// Whether the fragment offset is certainly 0: the packet is whole or a first fragment.
    has_upper_header: bool,
}

impl Way {
    /// Returns the path at the beginning of a program: A and X are 0.
    pub(super) fn start(link: Link) -> Way {
        Way {
            link,
            a: Value::Constant(0),
            x: Value::Constant(0),
            least: 0,
            most: 0,
            tags: 0,
            network: Network::Unknown,
            protocol: None,
            has_upper_header: false,
        }
    }

    /// Returns whether `ret a` may accept the frame: A is possibly not 0.
    pub(super) fn may_be_nonzero(&self) -> bool {
        self.most != 0
    }

    /// Applies an instruction that is neither a conditional jump nor a return.
    pub(super) fn step(&mut self, insn: Insn) {
        match insn.code {
            LD_IMM => self.set_a(Value::Constant(insn.k)),
            LDX_IMM => self.x = Value::Constant(insn.k),
            LDX_MEM | LDX_LEN => self.x = Value::Unknown,
            LDX_MSH => self.x = Value::HeaderLength(insn.k),
            TAX => self.x = self.a,
            TXA => self.set_a(self.x),
            ST | STX | JA => {}
            _ if insn.load().is_some() => self.set_a(self.loaded(insn)),
            _ if insn.code & 7 == ALU => self.set_a(self.computed(insn)),
            _ => self.set_a(Value::Unknown),
        }
    }

    fn set_a(&mut self, value: Value) {
        self.a = value;
        (self.least, self.most) = match value {
            Value::Constant(constant) => (constant, constant),
            Value::Bytes(bytes) => (0, bytes.mask),
            Value::HeaderLength(_) => (0, 60),
            Value::Unknown => (0, u32::MAX),
        };
    }

    /// Returns the value that a load puts into A. A load beyond the end of the frame ends the program, so on this path
    /// the load has succeeded.
    fn loaded(&self, insn: Insn) -> Value {
        let Some(load) = insn.load() else { return Value::Unknown };
        let (size, mask) = (load.size, u32::MAX >> (32 - 8 * u32::from(load.size)));
        let bytes = |at, after_v4_header| Value::Bytes(Bytes { at, after_v4_header, size, mask });
        match self.x {
            _ if !load.indirect => bytes(insn.k, None),
            Value::Constant(x) => {
                insn.k.checked_add(x).map_or(Value::Unknown, |at| bytes(at, None))
            }
            Value::HeaderLength(header) => match insn.k.checked_sub(header) {
                Some(at) => bytes(at, Some(header)),
                None => Value::Unknown,
            },
            _ => Value::Unknown,
        }
    }

    fn computed(&self, insn: Insn) -> Value {
        let Some(operand) = self.operand(insn) else { return Value::Unknown };
        match self.a {
            Value::Constant(a) => {
                compute(insn.code, a, operand).map_or(Value::Unknown, Value::Constant)
            }
            Value::Bytes(bytes) if insn.code & 0xf0 == AND => {
                Value::Bytes(Bytes { mask: bytes.mask & operand, ..bytes })
            }
            _ => Value::Unknown,
        }
    }

    fn operand(&self, insn: Insn) -> Option<u32> {
        match self.x {
            _ if insn.code & X == 0 => Some(insn.k),
            Value::Constant(x) => Some(x),
            _ => None,
        }
    }

    /// Returns the path on which the condition of a jump is `is_true`; `None` if no frame can take this path.
    pub(super) fn branch<F: Facts + ?Sized>(
        mut self,
        insn: Insn,
        is_true: bool,
        facts: &F,
    ) -> Option<Way> {
        let Some(operand) = self.operand(insn) else { return Some(self) };
        if let Value::Constant(a) = self.a {
            return (holds(insn.code, a, operand) == is_true).then_some(self);
        }
        match (insn.code & 0xf0, is_true) {
            (JEQ, true) => {
                (self.least, self.most) = (self.least.max(operand), self.most.min(operand))
            }
            // A range can exclude a single value only at one of its ends.
            (JEQ, false) if self.least == operand => self.least = operand.checked_add(1)?,
            (JEQ, false) if self.most == operand => self.most = operand.checked_sub(1)?,
            (JGT, true) => self.least = self.least.max(operand.checked_add(1)?),
            (JGT, false) => self.most = self.most.min(operand),
            (JGE, true) => self.least = self.least.max(operand),
            (JGE, false) => self.most = self.most.min(operand.checked_sub(1)?),
            _ => {}
        }
        if self.least > self.most {
            return None;
        }
        let Value::Bytes(bytes) = self.a else { return Some(self) };
        let Some(field) = self.field(bytes) else { return Some(self) };
        if field == Field::Fragment {
            self.has_upper_header |= match insn.code & 0xf0 {
                JSET => !is_true && operand & bytes.mask & 0x1fff == 0x1fff,
                _ => bytes.mask & 0x1fff == 0x1fff && self.most == 0,
            };
            return Some(self);
        }
        self.may_be(field, bytes.mask, facts).then(|| self.learn(field, bytes.mask))
    }

    /// Returns the offset of the network layer, assuming no more VLAN tags than `tags`.
    fn network_at(&self) -> u32 {
        match self.link {
            Link::Ethernet => TYPE_AT + 2 + TAG_BYTES * u32::from(self.tags),
            Link::Raw => 0,
        }
    }

    /// Returns the field that these bytes contain in every frame on this path; `None` if it is not known.
    fn field(&self, bytes: Bytes) -> Option<Field> {
        let Bytes { at, after_v4_header, size, .. } = bytes;
        if let Some(header) = after_v4_header {
            let has_ports = self.network == Network::V4
                && self.has_upper_header
                && self.protocol.is_some_and(has_ports);
            let known =
                has_ports && header == self.network_at() && matches!((at, size), (0 | 2, 2));
            return known.then_some(Field::Port);
        }
        if self.link == Link::Ethernet {
            let tag =
                at.checked_sub(TYPE_AT).map(|beyond| (beyond / TAG_BYTES, beyond % TAG_BYTES));
            match (tag, size) {
                (Some((tag, 0)), 2) if tag <= u32::from(self.tags) => {
                    return Some(Field::EtherType(tag as u8));
                }
                (Some((tag, 2)), 2) if tag < u32::from(self.tags) => return Some(Field::Tag),
                _ => {}
            }
        } else if (at, size) == (0, 1) {
            return Some(Field::Version);
        }
        match (self.network, at.checked_sub(self.network_at())?, size) {
            (Network::V4, 6, 2) => Some(Field::Fragment),
            (Network::V4, 9, 1) | (Network::V6, 6, 1) => Some(Field::Protocol),
            (Network::V4, 12 | 16, 4) | (Network::Arp, 14 | 24, 4) => Some(Field::V4Address),
            (Network::V6, within @ 8..40, 4) if within % 4 == 0 => {
                Some(Field::V6Word((within / 4 - 2) as u8 % 4))
            }
            (Network::V6, 40, 1) if self.protocol == Some(IPV6_FRAGMENT) => {
                Some(Field::ProtocolOfFragment)
            }
            (Network::V6, 40 | 42, 2) if self.protocol.is_some_and(has_ports) => Some(Field::Port),
            _ => None,
        }
    }

    /// Returns whether any frame may have a value of `field` that, after masking, lies between `least` and `most`.
    fn may_be<F: Facts + ?Sized>(&self, field: Field, mask: u32, facts: &F) -> bool {
        let (kind, whole) = match field {
            Field::EtherType(_) => (Kind::EtherType, 0xffff),
            Field::Tag => (Kind::Vlan, 0x0fff),
            Field::V4Address => (Kind::V4Address, u32::MAX),
            Field::V6Word(position) => (Kind::V6Word(position), u32::MAX),
            Field::Protocol | Field::ProtocolOfFragment => (Kind::Protocol, 0xff),
            Field::Port => (Kind::Port, 0xffff),
            Field::Fragment => return true,
            Field::Version => return self.version_may_be(mask, facts),
        };
        let fits = |value: &u32| (self.least..=self.most).contains(&(value & mask));
        if let Some(known) = self.ether_types(field) {
            return known.iter().any(fits);
        }
        if let (Field::Protocol, Some(known)) = (field, self.protocol) {
            return fits(&known.into());
        }
        // If the mask removes only the lowest bits, the possible values of the field are a range. With any other mask,
        // assume that a frame may have such a value.
        let rest = whole & !mask;
        if mask & !whole != 0 || rest & rest.wrapping_add(1) != 0 {
            return true;
        }
        let Some(least) = self.least.checked_add(rest).map(|value| value & !rest) else {
            return false;
        };
        let most = self.most & !rest | rest;
        // No value with these low bits cleared lies between `least` and `most`.
        if least > most {
            return false;
        }
        most - least >= VALUES_MAX || (least..=most).any(|value| facts.may_have(kind, value))
    }

    fn version_may_be<F: Facts + ?Sized>(&self, mask: u32, facts: &F) -> bool {
        if mask != 0xf0 || self.least != self.most {
            return true;
        }
        match (self.least, self.network) {
            (0x40, Network::Unknown | Network::V4) => {
                facts.may_have(Kind::EtherType, ether_type::IPV4.into())
            }
            (0x60, Network::Unknown | Network::V6) => {
                facts.may_have(Kind::EtherType, ether_type::IPV6.into())
            }
            (0x40 | 0x60, _) => false,
            _ => true,
        }
    }

    /// Returns the only values that an EtherType can have after the conditions so far. `None`: any value, or the field
    /// is not an EtherType.
    fn ether_types(&self, field: Field) -> Option<&[u32]> {
        const V4: [u32; 1] = [ether_type::IPV4 as u32];
        const V6: [u32; 1] = [ether_type::IPV6 as u32];
        const ARP: [u32; 2] = [ether_type::ARP as u32, RARP as u32];
        const TAG: [u32; 3] =
            [ether_type::VLAN as u32, ether_type::SERVICE_VLAN as u32, ether_type::OLD_QINQ as u32];
        match (field, self.network) {
            (Field::EtherType(tag), _) if tag < self.tags => Some(&TAG),
            (Field::EtherType(_), Network::V4) => Some(&V4),
            (Field::EtherType(_), Network::V6) => Some(&V6),
            (Field::EtherType(_), Network::Arp) => Some(&ARP),
            _ => None,
        }
    }

    /// Records the network layer, tag or protocol if A, the field after masking, has only one possible value.
    fn learn(mut self, field: Field, mask: u32) -> Way {
        if self.least != self.most {
            return self;
        }
        match field {
            Field::EtherType(tag)
                if tag == self.tags && self.network == Network::Unknown && mask == 0xffff =>
            {
                self.network = Network::of(self.least);
                let tagged = u16::try_from(self.least).is_ok_and(is_tag);
                self.tags += u8::from(tagged && usize::from(tag) < VLANS_MAX);
            }
            Field::Version if mask == 0xf0 && self.network == Network::Unknown => {
                self.network = match self.least {
                    0x40 => Network::V4,
                    0x60 => Network::V6,
                    _ => Network::Unknown,
                };
            }
            Field::Protocol if mask == 0xff => self.protocol = u8::try_from(self.least).ok(),
            _ => {}
        }
        self
    }
}
