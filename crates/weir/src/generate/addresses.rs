//! Where `weir gen` sends: addresses that were asked for, and those that the kernel knows.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use weir_capture::interface::neighbour::{self, Cast, Route};
use weir_frame::datagram::{Addressing, Payload};
use weir_lab::ethtool;
use weir_lab::generator::{checked_link, template};

use crate::cli::AddressArgs;

/// The destination of IPv6 frames unless told otherwise: documentation, RFC 3849.
const DESTINATION_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let bad = || format!("'{text}' is no MAC address; write it like 02:00:5e:10:00:01");
        let mut mac = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut mac {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Mac(mac)) }
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A source address, or one for each flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceIp {
    /// Made from the flow's number.
    Flow,
    /// This one.
    One(IpAddr),
}

impl FromStr for SourceIp {
    type Err = String;

    fn from_str(text: &str) -> Result<SourceIp, String> {
        if text == "flow" {
            return Ok(SourceIp::Flow);
        }
        let bad =
            |_| format!("'{text}' is no IP address; write one, or flow for one for each flow");
        text.parse().map(SourceIp::One).map_err(bad)
    }
}

/// VLAN IDs, the outer one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vlans(pub Vec<u16>);

impl FromStr for Vlans {
    type Err = String;

    fn from_str(text: &str) -> Result<Vlans, String> {
        let ids: Result<Vec<u16>, _> = text.split(',').map(str::parse).collect();
        match ids {
            Ok(ids) if ids.len() <= 2 && ids.iter().all(|id| *id < 4095) => Ok(Vlans(ids)),
            _ => Err(format!(
                "'{text}': write a VLAN ID, 0 to 4094, or two: the outer one first, 5,42"
            )),
        }
    }
}

/// The bytes of a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadBytes(pub Vec<u8>);

impl FromStr for PayloadBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<PayloadBytes, String> {
        if let Some(text) = text.strip_prefix("text:") {
            return Ok(PayloadBytes(text.as_bytes().to_vec()));
        }
        let digits: Vec<u8> = text.bytes().filter(|byte| !b": ".contains(byte)).collect();
        let byte = |pair: &[u8; 2]| {
            let digit = |of: u8| char::from(of).to_digit(16);
            Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)
        };
        let (pairs, rest) = digits.as_chunks::<2>();
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        match bytes {
            Some(bytes) if rest.is_empty() => Ok(PayloadBytes(bytes)),
            _ => Err(format!("'{text}': write bytes in hex, 0a0b0c, or text:hello")),
        }
    }
}

/// What the JSON report says of the addresses.
#[derive(Serialize)]
pub struct JsonAddresses {
    src_mac: String,
    dst_mac: String,
    /// Not if it is the flow's.
    #[serde(skip_serializing_if = "Option::is_none")]
    src_ip: Option<IpAddr>,
    dst_ip: IpAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    dst_port: u16,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vlans: Vec<u16>,
}

impl JsonAddresses {
    pub fn new(of: &Addressing) -> JsonAddresses {
        JsonAddresses {
            src_mac: Mac(of.source_mac).to_string(),
            dst_mac: Mac(of.destination_mac).to_string(),
            src_ip: of.source,
            dst_ip: of.destination,
            src_port: of.source_port,
            dst_port: of.destination_port,
            vlans: of.vlans.clone(),
        }
    }
}

/// Where the frames go; `None` if nothing was said about it. `is_sized`: whether a size was asked for, which a
/// payload is filled up to.
pub fn addressing(iface: &str, args: &AddressArgs, is_sized: bool) -> Result<Option<Addressing>> {
    if args.is_empty() {
        return Ok(None);
    }
    let ifindex = checked_link(iface)?;
    let source = match args.src_ip {
        Some(SourceIp::One(ip)) => Some(ip),
        _ => None,
    };
    let destination = args.dst_ip.unwrap_or_else(|| match source {
        Some(IpAddr::V6(_)) => DESTINATION_V6.into(),
        _ => template::DESTINATION.into(),
    });
    if let Some(source) = source
        && source.is_ipv4() != destination.is_ipv4()
    {
        bail!("--src-ip {source}, --dst-ip {destination}: both are IPv4, or both IPv6");
    }
    let asked = args.dst_ip.filter(|_| args.src_ip.is_none() || args.dst_mac.is_none());
    let route = asked.map(|to| route(iface, ifindex, to, args)).transpose()?.flatten();
    let source = match (args.src_ip, route) {
        (None, Some(Route { source: None, .. })) if args.dst_mac.is_none() => {
            let family = if destination.is_ipv4() { "IPv4" } else { "IPv6" };
            bail!("{iface} has no {family} address to send from; give --src-ip, or --src-ip flow")
        }
        (None, Some(route)) => route.source,
        _ => source,
    };
    let destination_mac = match (args.dst_mac, route) {
        (Some(Mac(mac)), _) => mac,
        (None, Some(route)) => resolved(iface, ifindex, destination, route, args)?,
        (None, None) => template::DESTINATION_MAC,
    };
    let source_mac = match args.src_mac {
        Some(Mac(mac)) => mac,
        None if args.dst_ip.is_some() || args.dst_mac.is_some() => ethtool::mac(iface)?,
        None => template::SOURCE_MAC,
    };
    let payload = args.payload.clone();
    Ok(Some(Addressing {
        source_mac,
        destination_mac,
        vlans: args.vlan.clone().unwrap_or_default().0,
        source,
        destination,
        source_port: args.src_port,
        destination_port: args.dst_port.unwrap_or(template::DESTINATION_PORT),
        payload: payload.map(|PayloadBytes(bytes)| Payload { bytes, is_filled: is_sized }),
    }))
}

/// `None`: there is none, and none is needed.
fn route(iface: &str, ifindex: u32, to: IpAddr, args: &AddressArgs) -> Result<Option<Route>> {
    match neighbour::route(ifindex, to) {
        Ok(Route { cast: Cast::Local, .. }) if args.dst_mac.is_none() => bail!(
            "--dst-ip {to} is an address of this machine, and frames out of {iface} do not come back to it; name one \
             at the other end, or give --dst-mac"
        ),
        Ok(route) => Ok(Some(route)),
        Err(_) if args.dst_mac.is_some() => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENETUNREACH) => {
            bail!(
                "no route to {to} out of {iface}; give --dst-mac, or try: ip route add {to} dev {iface}"
            )
        }
        Err(error) => Err(error).with_context(|| format!("asking for the route to {to}")),
    }
}

/// The MAC address of the route's next hop.
fn resolved(
    iface: &str,
    ifindex: u32,
    to: IpAddr,
    route: Route,
    args: &AddressArgs,
) -> Result<[u8; 6]> {
    if route.cast == Cast::Many {
        return Ok(neighbour::mac_of_many(to));
    }
    if let Some(Vlans(ids)) = &args.vlan {
        let id = ids.last().copied().unwrap_or(0);
        bail!(
            "--vlan: {iface} asks for {to} without a tag; give --dst-mac, or send out of the VLAN's own interface, \
             as {iface}.{id}"
        );
    }
    let hop = route.next_hop;
    let way = if hop == to { hop.to_string() } else { format!("{hop}, the gateway to {to},") };
    let found: io::Result<_> = neighbour::mac(iface, ifindex, to, hop);
    let mac = match found
        .with_context(|| format!("{iface}: asking for the MAC address of {way}"))?
    {
        Some(mac) => mac,
        None => bail!(
            "{iface}: nobody says the MAC address of {way} see `ip neigh show dev {iface}`, or give --dst-mac"
        ),
    };
    eprintln!("weir: {way} is at {}", Mac(mac));
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macs_vlans_and_payloads_are_read() {
        for text in ["02:00:5e:10:00:0f", "02-00-5E-10-00-0f"] {
            let mac: Mac = text.parse().unwrap();
            assert_eq!(mac.to_string(), "02:00:5e:10:00:0f");
        }
        for bad in
            ["", "02:00:5e:10:00", "02:00:5e:10:00:0f:1", "2:0:5e:10:0:f", "02:00:5e:10:00:0g"]
        {
            assert!(bad.parse::<Mac>().unwrap_err().contains("02:00"), "{bad}");
        }
        assert_eq!("5".parse(), Ok(Vlans(vec![5])));
        assert_eq!("5,4094".parse(), Ok(Vlans(vec![5, 4094])));
        for bad in ["", "4095", "1,2,3", "1,", "-1", "blue"] {
            assert!(bad.parse::<Vlans>().unwrap_err().contains("0 to 4094"), "{bad}");
        }
        assert_eq!("text:a b".parse(), Ok(PayloadBytes(b"a b".to_vec())));
        assert_eq!("text:".parse(), Ok(PayloadBytes(vec![])));
        assert_eq!("0a0B ff:00".parse(), Ok(PayloadBytes(vec![10, 11, 255, 0])));
        for bad in ["0", "abc", "hello", "0x0a"] {
            assert!(bad.parse::<PayloadBytes>().unwrap_err().contains("text:hello"), "{bad}");
        }
        assert_eq!("flow".parse(), Ok(SourceIp::Flow));
        assert_eq!("::1".parse(), Ok(SourceIp::One(Ipv6Addr::LOCALHOST.into())));
        assert!("eth0".parse::<SourceIp>().unwrap_err().contains("flow"));
    }
}
