//! The addresses of the frames of `weir gen`, which are given on the command line or looked up in the kernel.

use std::io;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use weir_capture::interface::neighbour::{self, Cast, Route};
use weir_frame::datagram::typed::{Mac, PayloadBytes, SourceIp, Vlans};
use weir_frame::datagram::{self, Addressing, Payload};
use weir_lab::ethtool;
use weir_lab::generator::checked_link;

use crate::cli::AddressArgs;

/// The addresses in the JSON report.
#[derive(Serialize)]
pub struct JsonAddresses {
    src_mac: String,
    dst_mac: String,
    /// `None` if each flow has its own.
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

/// Returns the addresses of the frames; `None` if no flag names any. `is_sized`: a size was given, to which a payload
/// is padded.
pub fn addressing(iface: &str, args: &AddressArgs, is_sized: bool) -> Result<Option<Addressing>> {
    if args.is_empty() {
        return Ok(None);
    }
    let ifindex = checked_link(iface)?;
    let source = match args.src_ip {
        Some(SourceIp::One(ip)) => Some(ip),
        _ => None,
    };
    let destination = args.dst_ip.unwrap_or_else(|| datagram::destination_for(source));
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
        (None, None) => datagram::DESTINATION_MAC,
    };
    let source_mac = match args.src_mac {
        Some(Mac(mac)) => mac,
        None if args.dst_ip.is_some() || args.dst_mac.is_some() => ethtool::mac(iface)?,
        None => datagram::SOURCE_MAC,
    };
    let payload = args.payload.clone();
    Ok(Some(Addressing {
        source_mac,
        destination_mac,
        vlans: args.vlan.clone().unwrap_or_default().0,
        source,
        destination,
        source_port: args.src_port,
        destination_port: args.dst_port.unwrap_or(datagram::DESTINATION_PORT),
        payload: payload.map(|PayloadBytes(bytes)| Payload { bytes, is_filled: is_sized }),
    }))
}

/// Returns the kernel's route to an address; `None` if there is no route, but --dst-mac makes it unnecessary.
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

/// Returns the MAC address of the route's next hop.
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
    let way = if hop == to { hop.to_string() } else { format!("{hop} (the gateway to {to})") };
    let found: io::Result<_> = neighbour::mac(iface, ifindex, to, hop);
    let mac = match found
        .with_context(|| format!("{iface}: asking for the MAC address of {way}"))?
    {
        Some(mac) => mac,
        None => bail!(
            "{iface}: nobody answers for {way}, so its MAC address is unknown; see `ip neigh show dev {iface}`, or \
             give --dst-mac"
        ),
    };
    eprintln!("weir: {way} is at {}", Mac(mac));
    Ok(mac)
}
