//! Addresses of generated frames. They have the names of the flags of `weir gen`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use weir_frame::datagram::typed::{Mac, SourceIp, Vlans};
use weir_frame::datagram::{
    Addressing, DESTINATION_MAC, DESTINATION_PORT, SOURCE_MAC, destination_for,
};

/// Addresses of generated frames. Defaults are addresses that are reserved for tests and documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Source MAC address.
    pub source_mac: Option<Mac>,
    /// Destination MAC address.
    pub destination_mac: Option<Mac>,
    /// Source IP address: one for all frames, or one for each flow, which is the default.
    pub source: Option<SourceIp>,
    /// Destination IP address.
    pub destination: Option<IpAddr>,
    /// UDP source port; `None`: each flow has its own.
    pub source_port: Option<u16>,
    /// UDP destination port.
    pub destination_port: Option<u16>,
    /// VLAN IDs, the outer one first.
    pub vlans: Vlans,
}

impl Addresses {
    /// Sets an address by name; `None` if there is no address of this name. The error describes the format.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let set = match name {
            "src-mac" => value.parse().map(|mac| self.source_mac = Some(mac)),
            "dst-mac" => value.parse().map(|mac| self.destination_mac = Some(mac)),
            "src-ip" => value.parse().map(|ip| self.source = Some(ip)),
            "dst-ip" => parsed(value, "an address: dst-ip=10.0.0.7 or dst-ip=2001:db8::7")
                .map(|ip| self.destination = Some(ip)),
            "src-port" => {
                parsed(value, "a port: src-port=5000").map(|port| self.source_port = Some(port))
            }
            "dst-port" => {
                parsed(value, "a port: dst-port=514").map(|port| self.destination_port = Some(port))
            }
            "vlan" => value.parse().map(|vlans| self.vlans = vlans),
            _ => return None,
        };
        Some(set)
    }

    /// Returns the addressing of the frames; `None` if no address is set.
    #[must_use]
    pub fn addressing(&self) -> Option<Addressing> {
        if *self == Addresses::default() {
            return None;
        }
        let source = match self.source {
            Some(SourceIp::One(ip)) => Some(ip),
            Some(SourceIp::Flow) | None => None,
        };
        let destination = self.destination.unwrap_or_else(|| destination_for(source));
        Some(Addressing {
            source_mac: self.source_mac.map_or(SOURCE_MAC, |mac| mac.0),
            destination_mac: self.destination_mac.map_or(DESTINATION_MAC, |mac| mac.0),
            vlans: self.vlans.0.clone(),
            source,
            destination,
            source_port: self.source_port,
            destination_port: self.destination_port.unwrap_or(DESTINATION_PORT),
            payload: None,
        })
    }
}

fn parsed<T: FromStr>(value: &str, way_out: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("write {way_out}"))
}

impl fmt::Display for Addresses {
    /// Writes the text for the end of a `gen:` name. Each address begins with a comma.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, mac) in [("src-mac", self.source_mac), ("dst-mac", self.destination_mac)] {
            mac.map_or(Ok(()), |mac| write!(f, ",{name}={mac}"))?;
        }
        match self.source {
            Some(SourceIp::One(ip)) => write!(f, ",src-ip={ip}")?,
            Some(SourceIp::Flow) => f.write_str(",src-ip=flow")?,
            None => {}
        }
        self.destination.map_or(Ok(()), |ip| write!(f, ",dst-ip={ip}"))?;
        for (name, port) in [("src-port", self.source_port), ("dst-port", self.destination_port)] {
            port.map_or(Ok(()), |port| write!(f, ",{name}={port}"))?;
        }
        let vlans: Vec<String> = self.vlans.0.iter().map(u16::to_string).collect();
        if vlans.is_empty() { Ok(()) } else { write!(f, ",vlan={}", vlans.join(",")) }
    }
}
