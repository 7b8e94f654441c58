//! Finds out whether this machine's own traffic uses an interface. If it does, consuming the interface's frames
//! disconnects the machine.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::link::{LinkRelations, links};

/// Traffic of this network namespace that depends on an interface or on those above it: its bridge or bond,
/// its VLANs, its macvlans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnTraffic {
    /// The interface, or one above it, that the default route uses.
    pub default_route: Option<String>,
    /// Addresses of the interface and of those above it, each with the name of its interface. IPv6
    /// link-local addresses, which every interface has, are not included.
    pub addresses: Vec<(String, IpAddr)>,
}

impl OwnTraffic {
    /// Returns whether no traffic depends on the interface, as on a monitoring port.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.default_route.is_none() && self.addresses.is_empty()
    }
}

/// Parses a line that lists a route; returns the interface if it is a default route.
type DefaultRoute = fn(&str) -> Option<&str>;

/// Returns the traffic that depends on this interface, in the calling thread's network namespace. Needs no privileges.
///
/// # Errors
/// The kernel's error.
pub fn own_traffic(ifindex: u32) -> io::Result<OwnTraffic> {
    let links = links()?;
    let above = with_those_above(&links, ifindex);
    let names: BTreeSet<&str> = above.iter().map(|link| link.name.as_str()).collect();
    let mut own = OwnTraffic::default();
    let routes: [(&str, DefaultRoute); 2] = [("route", default_v4), ("ipv6_route", default_v6)];
    for (file, default) in routes {
        // The file does not exist in a kernel without IPv6 or without IPv4.
        let text = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        let found = text.lines().filter_map(default).find(|name| names.contains(name));
        own.default_route = own.default_route.or(found.map(str::to_owned));
    }
    own.addresses = addresses()?;
    own.addresses
        .retain(|(name, address)| names.contains(name.as_str()) && !is_link_local(*address));
    Ok(own)
}

/// Returns the link with this index, and all links above it, which receive its frames.
fn with_those_above(links: &[LinkRelations], ifindex: u32) -> Vec<&LinkRelations> {
    let mut found: BTreeSet<u32> = [ifindex].into();
    loop {
        let before = found.len();
        for link in links {
            if link.lower.is_some_and(|lower| found.contains(&lower)) {
                found.insert(link.index);
            }
            if found.contains(&link.index) {
                found.extend(link.master);
            }
        }
        if found.len() == before {
            return links.iter().filter(|link| found.contains(&link.index)).collect();
        }
    }
}

/// Returns the interface of a default route, from a line of /proc/net/route. Routes that reject or drop packets have no
/// interface.
///
/// Source: `fib_route_seq_show`, net/ipv4/fib_trie.c: name, destination, gateway, flags, ..., mask in column 7.
fn default_v4(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_default = *words.get(1)? == "00000000" && *words.get(7)? == "00000000";
    is_default.then(|| words[0]).filter(|&name| name != "*")
}

/// Returns the interface of a default route, from a line of /proc/net/ipv6_route. The loopback device is ignored: every
/// namespace has a null route on it.
///
/// Source: `rt6_info_route`, net/ipv6/route.c: destination, its length, ..., name in column 9.
fn default_v6(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_default = words.first()?.bytes().all(|digit| digit == b'0') && *words.get(1)? == "00";
    is_default.then(|| words.get(9).copied()).flatten().filter(|&name| name != "lo")
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80)
}

/// Returns all addresses of the calling thread's network namespace, with the names of their interfaces. Needs no
/// privileges.
///
/// # Errors
/// The kernel's error.
pub fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the call puts the address of a list into `first`, or fails and leaves it unchanged.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut all = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: not null, and an entry of the list, which lives until it is freed below.
        let entry = unsafe { &*next };
        // SAFETY: libc's names are terminated, and live as long as the list.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) };
        // SAFETY: null, or an address in the list, which is as long as its family requires.
        if let Some(address) = unsafe { address_of(entry.ifa_addr) } {
            all.push((name.to_string_lossy().into_owned(), address));
        }
        next = entry.ifa_next;
    }
    // SAFETY: given by `getifaddrs`, freed once; nothing above borrows from it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

/// Returns the IP address in a socket address; `None` if it has none.
///
/// # Safety
/// `address` is null, or points to a socket address of the length that belongs to its family.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family, so it is a `sockaddr_in`, and libc aligns it for all families.
            let address = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, a `sockaddr_in6`.
            let address = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, lower: Option<u32>, master: Option<u32>) -> LinkRelations {
        LinkRelations { index, name: format!("if{index}"), lower, master }
    }

    #[test]
    fn what_stands_above_is_found_whatever_the_order() {
        // A VLAN (5) on a bond (3) of two (1, 2); a bridge (4) that the VLAN belongs to; another (6).
        let links = [
            link(5, Some(3), Some(4)),
            link(1, None, Some(3)),
            link(2, None, Some(3)),
            link(3, None, None),
            link(4, None, None),
            link(6, None, None),
        ];
        let above = |index| {
            with_those_above(&links, index).iter().map(|link| link.index).collect::<BTreeSet<_>>()
        };
        assert_eq!(above(1), [1, 3, 4, 5].into());
        assert_eq!(above(3), [3, 4, 5].into());
        assert_eq!(above(4), [4].into());
        assert_eq!(above(6), [6].into());
        assert_eq!(above(7), [].into());
    }

    #[test]
    fn default_routes_are_told_from_others() {
        let v4 = |destination, mask| {
            format!("eth0\t{destination}\t0100000A\t0003\t0\t0\t0\t{mask}\t0\t0\t0")
        };
        assert_eq!(default_v4(&v4("00000000", "00000000")), Some("eth0"));
        assert_eq!(default_v4(&v4("0000000A", "00FFFFFF")), None);
        assert_eq!(default_v4(&v4("00000000", "00000080")), None, "half of all addresses");
        assert_eq!(
            default_v4("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask"),
            None
        );
        assert_eq!(default_v4(""), None);
        let zeros = "0".repeat(32);
        let v6 = |length, name| {
            format!(
                "{zeros} {length} {zeros} 00 {zeros} 00000400 00000001 00000000 00000003 {name}"
            )
        };
        assert_eq!(default_v6(&v6("00", "    eth0")), Some("eth0"));
        assert_eq!(default_v6(&v6("00", "      lo")), None);
        assert_eq!(default_v6(&v6("40", "    eth0")), None);
        assert_eq!(default_v6(""), None);
    }

    #[test]
    fn the_loopback_device_has_this_machines_addresses() {
        let own = own_traffic(1).unwrap();
        assert!(own.addresses.contains(&("lo".to_owned(), Ipv4Addr::LOCALHOST.into())), "{own:?}");
        assert!(!own.is_none());
    }
}
