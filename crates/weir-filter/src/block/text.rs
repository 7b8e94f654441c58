//! Entries as text: `10.0.0.1`, `2001:db8::/32`, `tcp 10.0.0.1:80 10.0.0.2:4711`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use weir_frame::flow::{FlowKey, has_ports, protocol_name};
use weir_frame::headers::Addresses;

use super::entry::width;
use super::{Entry, Flow, Prefix, ends};

/// The reason why a text is not an entry. Texts are shown with control characters escaped, and shortened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The text is neither an address nor a prefix nor a flow.
    #[error(
        "'{text}' is nothing to block; say an address (10.0.0.1), a prefix (2001:db8::/32) or a flow (tcp 10.0.0.1:80 \
         10.0.0.2:4711)"
    )]
    Form {
        /// The text.
        text: String,
    },
    /// The prefix is longer than the address.
    #[error("'{text}': a prefix of such an address has 0 to {width} bits")]
    Length {
        /// The text.
        text: String,
        /// Bits of the address.
        width: u8,
    },
    /// The address has bits set after the prefix.
    #[error("'{text}' has bits set behind the prefix; say {prefix}, or {address} alone")]
    HostBits {
        /// The text.
        text: String,
        /// The prefix that contains the address.
        prefix: String,
        /// The address.
        address: IpAddr,
    },
    /// The text is not a protocol.
    #[error(
        "'{text}' is no protocol; say tcp, udp, udplite, sctp, dccp, icmp, icmp6 or a number up to 255"
    )]
    Protocol {
        /// The text.
        text: String,
    },
    /// An end of the flow is not an address with a port.
    #[error("'{text}' is no end of a {protocol} flow; say 10.0.0.1:80 or [2001:db8::1]:80")]
    End {
        /// The text.
        text: String,
        /// The protocol.
        protocol: String,
    },
    /// An end of the flow is not an address, and the protocol has no ports.
    #[error("'{text}' is no end of a {protocol} flow, which has no ports; say an address alone")]
    EndWithoutPort {
        /// The text.
        text: String,
        /// The protocol.
        protocol: String,
    },
    /// One end of the flow has an IPv4 address, the other an IPv6 address.
    #[error("'{text}' has ends of two kinds; both are IPv4 or both are IPv6")]
    TwoKinds {
        /// The text.
        text: String,
    },
}

/// Returns the text, escaped and shortened for display.
fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut shown: String = text.chars().take(CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

impl FromStr for Entry {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Entry, EntryError> {
        let form = || EntryError::Form { text: shown(text) };
        let mut words = text.split_ascii_whitespace();
        match [words.next(), words.next(), words.next(), words.next()] {
            [Some(word), None, ..] => match word.split_once('/') {
                None => Ok(Entry::Address(word.parse().map_err(|_| form())?)),
                Some((base, bits)) => {
                    prefix(word, base.parse().map_err(|_| form())?, number(bits).ok_or_else(form)?)
                }
            },
            [Some(protocol), Some(from), Some(to), None] => flow(text, protocol, from, to),
            _ => Err(form()),
        }
    }
}

fn prefix(text: &str, base: IpAddr, bits: u32) -> Result<Entry, EntryError> {
    let width = width(base);
    let Some(bits) = u8::try_from(bits).ok().filter(|&bits| bits <= width) else {
        return Err(EntryError::Length { text: shown(text), width });
    };
    Entry::prefix(base, bits).ok_or_else(|| EntryError::HostBits {
        text: shown(text),
        // `bits` is less than `width` here, so this is a prefix.
        prefix: Prefix::around(base, bits).to_string(),
        address: base,
    })
}

fn flow(text: &str, protocol: &str, from: &str, to: &str) -> Result<Entry, EntryError> {
    let protocol =
        protocol_number(protocol).ok_or_else(|| EntryError::Protocol { text: shown(protocol) })?;
    let (from, src_port) = end(from, protocol)?;
    let (to, dst_port) = end(to, protocol)?;
    let addresses = match (from, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Addresses::V4 { src, dst },
        (IpAddr::V6(src), IpAddr::V6(dst)) => Addresses::V6 { src, dst },
        _ => return Err(EntryError::TwoKinds { text: shown(text) }),
    };
    Ok(Entry::Flow(Flow::new(FlowKey { addresses, src_port, dst_port, protocol })))
}

fn protocol_number(text: &str) -> Option<u8> {
    let named = |&number: &u8| protocol_name(number) == Some(text);
    (0..=u8::MAX).find(named).or_else(|| u8::try_from(number(text)?).ok())
}

fn end(text: &str, protocol: u8) -> Result<(IpAddr, u16), EntryError> {
    let protocol_text = || ProtocolText(protocol).to_string();
    if !has_ports(protocol) {
        let address = text.parse().map_err(|_| EntryError::EndWithoutPort {
            text: shown(text),
            protocol: protocol_text(),
        })?;
        return Ok((address, 0));
    }
    let parse = || {
        let (address, port) = text.rsplit_once(':')?;
        let port = u16::try_from(number(port)?).ok()?;
        let address = match address.strip_prefix('[') {
            Some(address) => IpAddr::V6(address.strip_suffix(']')?.parse().ok()?),
            None => IpAddr::V4(address.parse().ok()?),
        };
        Some((address, port))
    };
    parse().ok_or_else(|| EntryError::End { text: shown(text), protocol: protocol_text() })
}

/// Parses a number that consists only of digits: `parse` would also accept a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A protocol by its name, or by its number if it has none.
struct ProtocolText(u8);

impl fmt::Display for ProtocolText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match protocol_name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Writes the text that [`FromStr`] parses.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Address(address) => address.fmt(f),
            Entry::Prefix(prefix) => prefix.fmt(f),
            Entry::Flow(flow) => flow.fmt(f),
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base(), self.bits())
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlowKey { addresses, src_port, dst_port, protocol } = self.key();
        write!(f, "{}", ProtocolText(protocol))?;
        let (src, dst) = ends(addresses);
        for (address, port) in [(src, src_port), (dst, dst_port)] {
            match address {
                _ if !has_ports(protocol) => write!(f, " {address}")?,
                IpAddr::V4(address) => write!(f, " {address}:{port}")?,
                IpAddr::V6(address) => write!(f, " [{address}]:{port}")?,
            }
        }
        Ok(())
    }
}
