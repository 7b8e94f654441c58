//! The route of packets from an interface to an address: the next hop, and its Ethernet address from the
//! kernel's neighbour table, which ARP and neighbour discovery fill. Needs no privileges.
//!
//! Source: linux/rtnetlink.h, linux/neighbour.h.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::link::{self, ATTRIBUTE_BYTES, attribute_of};
use super::netlink::{HEADER_BYTES, Netlink};
use crate::limits::NEIGHBOUR_WAIT_MAX;

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_GETNEIGH: u16 = 30;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
/// A gateway of the other address family: `struct rtvia`, the family and the address.
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Bytes of `struct rtmsg` and of `struct ndmsg`.
const BODY_BYTES: usize = 12;
const RTN_LOCAL: u8 = 2;
const RTN_BROADCAST: u8 = 3;
const RTN_MULTICAST: u8 = 5;
/// REACHABLE, STALE, DELAY, PROBE, NOARP, PERMANENT: the states in which the kernel uses the address of the
/// entry.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const FAILED: u16 = 0x20;
/// The discard service, RFC 863: destination of the datagram that makes the kernel resolve the address.
const DISCARD_PORT: u16 = 9;

/// The route of packets to an address out of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The gateway, or the destination itself. Frames are sent to its Ethernet address.
    pub next_hop: IpAddr,
    /// The source address that the kernel selects; `None`: the interface has no address of this family.
    pub source: Option<IpAddr>,
    /// The kind of destination.
    pub cast: Cast,
}

/// The kind of a destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// One host.
    Unicast,
    /// All hosts of a network, or a multicast group.
    Many,
    /// This host.
    Local,
}

/// Returns the route to an address out of an interface, in the calling thread's network namespace.
///
/// # Errors
/// The kernel's error: ENETUNREACH without a route.
pub fn route(ifindex: u32, to: IpAddr) -> io::Result<Route> {
    let mut body = vec![family(to), address_bits(to)];
    body.resize(BODY_BYTES, 0);
    put(&mut body, RTA_DST, &octets(to));
    put(&mut body, RTA_OIF, &ifindex.to_ne_bytes());
    let answer = ask(RTM_GETROUTE, &body)?;
    route_in(&answer, to).ok_or_else(|| io::Error::other("the answer is none about a route"))
}

fn route_in(message: &[u8], to: IpAddr) -> Option<Route> {
    if link::kind(message)? != RTM_NEWROUTE {
        return None;
    }
    let cast = match *message.get(HEADER_BYTES + 7)? {
        RTN_LOCAL => Cast::Local,
        RTN_BROADCAST | RTN_MULTICAST => Cast::Many,
        _ if to.is_multicast() => Cast::Many,
        _ => Cast::Unicast,
    };
    let attributes = message.get(HEADER_BYTES + BODY_BYTES..)?;
    let address = |kind| attribute_of(attributes, kind).and_then(address);
    let via = || attribute_of(attributes, RTA_VIA).and_then(|via| self::address(via.get(2..)?));
    Some(Route {
        next_hop: address(RTA_GATEWAY).or_else(via).unwrap_or(to),
        source: address(RTA_PREFSRC).filter(|source| !source.is_unspecified()),
        cast,
    })
}

/// Returns the Ethernet address for packets to several hosts: the address derived from the multicast address, or the
/// broadcast address.
#[must_use]
pub fn mac_of_many(to: IpAddr) -> [u8; 6] {
    match to {
        // Source: RFC 1112 section 6.4, RFC 2464 section 7.
        IpAddr::V4(to) if to.is_multicast() => {
            let [_, b, c, d] = to.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V6(to) => {
            let [.., a, b, c, d] = to.octets();
            [0x33, 0x33, a, b, c, d]
        }
        IpAddr::V4(_) => [0xff; 6],
    }
}

/// Returns the Ethernet address of `next_hop`, a host on the interface's link. If the kernel does not know the address,
/// an empty datagram to port 9 of `to` makes the kernel resolve it. `None`: no answer within [`NEIGHBOUR_WAIT_MAX`].
///
/// # Errors
/// The kernel's error.
pub fn mac(iface: &str, ifindex: u32, to: IpAddr, next_hop: IpAddr) -> io::Result<Option<[u8; 6]>> {
    if let Some(Entry { mac: Some(mac), .. }) = entry(ifindex, next_hop)? {
        return Ok(Some(mac));
    }
    send_nothing(iface, ifindex, to)?;
    let begin = Instant::now();
    loop {
        match entry(ifindex, next_hop)? {
            Some(Entry { mac: Some(mac), .. }) => return Ok(Some(mac)),
            Some(Entry { failed: true, .. }) => return Ok(None),
            _ if begin.elapsed() > NEIGHBOUR_WAIT_MAX => return Ok(None),
            _ => sleep(Duration::from_millis(5)),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    mac: Option<[u8; 6]>,
    failed: bool,
}

/// Returns the entry of the neighbour table for an address; `None` if there is none.
fn entry(ifindex: u32, of: IpAddr) -> io::Result<Option<Entry>> {
    let mut body = vec![family(of), 0, 0, 0];
    body.extend(ifindex.to_ne_bytes());
    body.resize(BODY_BYTES, 0);
    put(&mut body, NDA_DST, &octets(of));
    match ask(RTM_GETNEIGH, &body) {
        Ok(answer) => Ok(entry_in(&answer)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

fn entry_in(message: &[u8]) -> Option<Entry> {
    if link::kind(message)? != RTM_NEWNEIGH {
        return None;
    }
    let body = message.get(HEADER_BYTES..HEADER_BYTES + BODY_BYTES)?;
    let state = u16::from_ne_bytes([body[8], body[9]]);
    let address = attribute_of(&message[HEADER_BYTES + BODY_BYTES..], NDA_LLADDR);
    let mac = address.and_then(|address| address.try_into().ok());
    Some(Entry {
        mac: mac.filter(|mac| state & USABLE != 0 && *mac != [0; 6]),
        failed: state & FAILED != 0,
    })
}

fn send_nothing(iface: &str, ifindex: u32, to: IpAddr) -> io::Result<()> {
    let any: IpAddr = match to {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // SAFETY: the kernel reads `iface.len()` bytes of a live string; the socket is open.
    let bound = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTODEVICE,
            iface.as_ptr().cast(),
            iface.len() as libc::socklen_t,
        )
    };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    let to = match to {
        // A link-local address needs the index of its interface.
        IpAddr::V6(to) => SocketAddrV6::new(to, DISCARD_PORT, 0, ifindex).into(),
        IpAddr::V4(_) => SocketAddr::new(to, DISCARD_PORT),
    };
    socket.send_to(&[], to).map(|_| ())
}

/// Makes a request. Returns the answer, or the error in it.
fn ask(kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = Netlink::open()?;
    socket.request(kind, 0, body)?;
    let answer = socket.receive()?;
    if link::kind(&answer) == Some(libc::NLMSG_ERROR as u16) {
        let error = answer.get(HEADER_BYTES..).and_then(|body| body.first_chunk());
        let error = error.map_or(libc::EIO, |error| -i32::from_ne_bytes(*error));
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(answer)
}

/// Appends an attribute, padded as netlink requires.
fn put(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn family(of: IpAddr) -> u8 {
    (if of.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn address_bits(of: IpAddr) -> u8 {
    if of.is_ipv4() { 32 } else { 128 }
}

fn octets(of: IpAddr) -> Vec<u8> {
    match of {
        IpAddr::V4(of) => of.octets().to_vec(),
        IpAddr::V6(of) => of.octets().to_vec(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn message(kind: u16, body: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = vec![0; HEADER_BYTES];
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.extend(body);
        attributes.iter().for_each(|(kind, value)| put(&mut message, *kind, value));
        message
    }

    #[test]
    fn a_route_has_its_gateway_and_source() {
        let unicast = [2, 32, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        let attributes: [(u16, &[u8]); 2] =
            [(RTA_GATEWAY, &[10, 0, 0, 1]), (RTA_PREFSRC, &[10, 0, 0, 5])];
        let to = ip("192.0.2.9");
        let whole = message(RTM_NEWROUTE, &unicast, &attributes);
        let expected =
            Route { next_hop: ip("10.0.0.1"), source: Some(ip("10.0.0.5")), cast: Cast::Unicast };
        assert_eq!(route_in(&whole, to), Some(expected));
        // A message that is cut anywhere is not read out of bounds.
        for length in 0..whole.len() {
            _ = route_in(&whole[..length], to);
        }
        let via = [&[10, 0][..], &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]].concat();
        let route = route_in(&message(RTM_NEWROUTE, &unicast, &[(RTA_VIA, &via)]), to).unwrap();
        assert_eq!((route.next_hop, route.source), (ip("fe80::1"), None));
        let broadcast = [2, 32, 0, 0, 0, 0, 0, RTN_BROADCAST, 0, 0, 0, 0];
        let route = route_in(&message(RTM_NEWROUTE, &broadcast, &[]), to).unwrap();
        assert_eq!((route.next_hop, route.cast), (to, Cast::Many));
        assert_eq!(route_in(&message(RTM_NEWNEIGH, &unicast, &[]), to), None);
    }

    #[test]
    fn only_a_usable_entry_has_an_address() {
        let of = |state: u16, mac: &[u8]| {
            let mut body = [0; BODY_BYTES];
            body[8..10].copy_from_slice(&state.to_ne_bytes());
            entry_in(&message(RTM_NEWNEIGH, &body, &[(NDA_LLADDR, mac)])).unwrap()
        };
        let mac = [2, 0, 0, 0, 0, 9];
        for state in [0x02, 0x04, 0x08, 0x10, 0x80] {
            assert_eq!(of(state, &mac).mac, Some(mac), "{state}");
        }
        assert_eq!(of(0x01, &mac).mac, None, "incomplete");
        assert_eq!(of(FAILED, &mac), Entry { mac: None, failed: true });
        assert_eq!(of(0x40, &[0; 6]).mac, None, "a tunnel");
        assert_eq!(of(0x80, &mac[..4]).mac, None);
    }

    #[test]
    fn groups_have_their_ethernet_address() {
        assert_eq!(mac_of_many(ip("239.129.2.3")), [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(mac_of_many(ip("10.0.0.255")), [0xff; 6]);
        assert_eq!(mac_of_many(ip("ff02::1:ff00:7")), [0x33, 0x33, 0xff, 0, 0, 7]);
    }

    #[test]
    fn the_loopback_address_is_local() {
        // SAFETY: the name is terminated; the call writes nothing.
        let lo = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        assert_eq!(route(lo, ip("127.0.0.1")).unwrap().cast, Cast::Local);
    }
}
