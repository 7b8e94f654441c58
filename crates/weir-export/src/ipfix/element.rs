//! Information elements: the fields of templates.
//!
//! Source: <https://www.iana.org/assignments/ipfix/ipfix.xhtml>; RFC 7011 section 3.2.

/// The enterprise number for elements of the reverse direction. Source: RFC 5103 section 6.1.
pub(super) const REVERSE: u32 = 29305;
/// The length in a template of elements whose values differ in length.
const VARIABLE: u16 = 65_535;

/// A field of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// The element's number in IANA's registry.
    pub number: u16,
    /// Whether the element is for the reverse direction of a biflow.
    pub is_reverse: bool,
    /// Length of each value in bytes.
    pub bytes: u16,
}

impl Element {
    pub(super) const fn new(number: u16, bytes: u16) -> Element {
        Element { number, is_reverse: false, bytes }
    }

    /// Creates an element for texts, whose values differ in length.
    pub(super) const fn text(number: u16) -> Element {
        Element::new(number, VARIABLE)
    }

    pub(super) const fn reversed(self) -> Element {
        Element { is_reverse: true, ..self }
    }

    /// Appends the element's field specifier.
    pub(super) fn put(self, out: &mut Vec<u8>) {
        let enterprise_bit = u16::from(self.is_reverse) << 15;
        out.extend((self.number | enterprise_bit).to_be_bytes());
        out.extend(self.bytes.to_be_bytes());
        if self.is_reverse {
            out.extend(REVERSE.to_be_bytes());
        }
    }
}

pub(super) const OCTETS: Element = Element::new(1, 8);
pub(super) const PACKETS: Element = Element::new(2, 8);
pub(super) const PROTOCOL: Element = Element::new(4, 1);
pub(super) const TCP_FLAGS: Element = Element::new(6, 2);
pub(super) const SRC_PORT: Element = Element::new(7, 2);
pub(super) const SRC_V4: Element = Element::new(8, 4);
pub(super) const INGRESS_INTERFACE: Element = Element::new(10, 4);
pub(super) const DST_PORT: Element = Element::new(11, 2);
pub(super) const DST_V4: Element = Element::new(12, 4);
pub(super) const SRC_V6: Element = Element::new(27, 16);
pub(super) const DST_V6: Element = Element::new(28, 16);
pub(super) const ICMP_V4: Element = Element::new(32, 2);
pub(super) const EXPORTED_MESSAGES: Element = Element::new(41, 8);
pub(super) const EXPORTED_FLOWS: Element = Element::new(42, 8);
pub(super) const VLAN: Element = Element::new(58, 2);
pub(super) const INTERFACE_NAME: Element = Element::text(82);
pub(super) const INTERFACE_DESCRIPTION: Element = Element::text(83);
pub(super) const END_REASON: Element = Element::new(136, 1);
pub(super) const ICMP_V6: Element = Element::new(139, 2);
pub(super) const EXPORTING_PROCESS: Element = Element::new(144, 4);
pub(super) const START_MS: Element = Element::new(152, 8);
pub(super) const END_MS: Element = Element::new(153, 8);
pub(super) const START_NS: Element = Element::new(156, 8);
pub(super) const END_NS: Element = Element::new(157, 8);
pub(super) const UNSENT_FLOWS: Element = Element::new(166, 8);
pub(super) const BIFLOW_DIRECTION: Element = Element::new(239, 1);
pub(super) const LAYER2_OCTETS: Element = Element::new(352, 8);
