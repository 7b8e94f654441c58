//! Parses the address of a collector.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The registered port of IPFIX, over UDP and TCP. Source: RFC 7011 section 10.3.4.
const PORT: u16 = 4739;

/// The transport protocol of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `ipfix://`: lost messages are not sent again; the collector notices the loss by sequence numbers.
    Udp,
    /// `ipfix+tcp://`: the collector's machine acknowledges the bytes that it received.
    Tcp,
}

/// The address of a collector: `ipfix://HOST[:PORT]` (UDP) or `ipfix+tcp://HOST[:PORT]`. An IPv6 address is written in
/// brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The transport protocol.
    pub protocol: Protocol,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port; 4739 if the text has none.
    pub port: u16,
}

/// The reason why a text is not the address of a collector.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TargetError {
    /// The text begins with another scheme, or with none.
    #[error(
        "{0}: not a collector of IPFIX; give ipfix://HOST[:PORT] for UDP, or ipfix+tcp://HOST[:PORT]"
    )]
    Scheme(String),
    /// The host is missing, or contains characters that a host cannot have.
    #[error("{0}: no host; give ipfix://HOST[:PORT], where HOST is a name or an address")]
    Host(String),
    /// There are too many colons: probably an IPv6 address without brackets.
    #[error("{0}: an IPv6 address goes in brackets: ipfix://[2001:db8::1]:4739")]
    Brackets(String),
    /// The text after the host is not a port.
    #[error("{0}: a port is a number from 1 to 65535; without one it is 4739")]
    Port(String),
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let (protocol, place) = if let Some(place) = text.strip_prefix("ipfix://") {
            (Protocol::Udp, place)
        } else if let Some(place) = text.strip_prefix("ipfix+tcp://") {
            (Protocol::Tcp, place)
        } else {
            return Err(TargetError::Scheme(text.into()));
        };
        let (host, port) = if let Some(rest) = place.strip_prefix('[') {
            rest.split_once(']').ok_or_else(|| TargetError::Brackets(text.into()))?
        } else {
            let end = place.find(':').unwrap_or(place.len());
            if place[end..].matches(':').count() > 1 {
                return Err(TargetError::Brackets(text.into()));
            }
            place.split_at(end)
        };
        let is_strange = |c: char| c.is_whitespace() || c.is_control() || "/@[]?#".contains(c);
        if host.is_empty() || host.contains(is_strange) {
            return Err(TargetError::Host(text.into()));
        }
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => Some(PORT),
            None => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            Some(_) => None,
        };
        match port {
            None | Some(0) => Err(TargetError::Port(text.into())),
            Some(port) => Ok(Target { protocol, host: host.into(), port }),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.protocol {
            Protocol::Udp => "ipfix",
            Protocol::Tcp => "ipfix+tcp",
        };
        let Target { host, port, .. } = self;
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectors_are_read_and_named_alike() {
        for (text, protocol, host, port, name) in [
            ("ipfix://c", Protocol::Udp, "c", 4739, "ipfix://c:4739"),
            ("ipfix://10.0.0.1:1", Protocol::Udp, "10.0.0.1", 1, "ipfix://10.0.0.1:1"),
            ("ipfix+tcp://[::1]", Protocol::Tcp, "::1", 4739, "ipfix+tcp://[::1]:4739"),
            ("ipfix://[fe80::1%e0]:9", Protocol::Udp, "fe80::1%e0", 9, "ipfix://[fe80::1%e0]:9"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target, Target { protocol, host: host.into(), port });
            assert_eq!(target.to_string(), name);
            assert_eq!(name.parse(), Ok(target));
        }
    }

    #[test]
    fn what_names_no_collector_is_told_the_way_out() {
        type Kind = fn(String) -> TargetError;
        for (text, kind) in [
            ("", TargetError::Scheme as Kind),
            ("collector:4739", TargetError::Scheme),
            ("udp://c", TargetError::Scheme),
            ("ipfix://", TargetError::Host),
            ("ipfix://:4739", TargetError::Host),
            ("ipfix://c/flows", TargetError::Host),
            ("ipfix://a b", TargetError::Host),
            ("ipfix://[]:1", TargetError::Host),
            ("ipfix://2001:db8::1", TargetError::Brackets),
            ("ipfix://[::1", TargetError::Brackets),
            ("ipfix://c:", TargetError::Port),
            ("ipfix://c:0", TargetError::Port),
            ("ipfix://c:+1", TargetError::Port),
            ("ipfix://c:65536", TargetError::Port),
            ("ipfix://[::1]4739", TargetError::Port),
        ] {
            assert_eq!(text.parse::<Target>(), Err(kind(text.into())), "{text}");
        }
    }
}
