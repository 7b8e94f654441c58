//! Facts that help to find the owner of an interface: its kind, and the network namespace of its peer.
//!
//! The kernel identifies another network namespace by a number that is local to the asking namespace
//! (`IFLA_LINK_NETNSID`). `RTM_GETNSID` returns the number of a process's or a file's namespace. Neither
//! needs privileges.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::link::{self, ATTRIBUTE_BYTES, attribute, attribute_of, until_zero};
use super::netlink::{HEADER_BYTES, Netlink};

/// Message types and attributes. Source: linux/rtnetlink.h and linux/net_namespace.h.
const RTM_NEWNSID: u16 = 88;
const RTM_GETNSID: u16 = 90;
const NETNSA_NSID: u16 = 1;
const NETNSA_PID: u16 = 2;
const NETNSA_FD: u16 = 3;
/// Bytes of `struct rtgenmsg`, with padding.
const GENMSG_BYTES: usize = 4;

/// The connection of an interface to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A tap or a tun, made through /dev/net/tun.
    Tun,
    /// A veth whose peer is in the network namespace with this number.
    Veth(i32),
    /// Any other interface. Its owner cannot be found by its connection.
    Other,
}

/// Returns the connection of the interface of this name, in the calling thread's network namespace.
///
/// # Errors
/// The kernel's error.
pub fn connection(iface: &str) -> io::Result<Connection> {
    let name = std::ffi::CString::new(iface)?;
    // SAFETY: the name is terminated and outlives the call, which writes nothing.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(connection_in(&link::ask(index)?))
}

fn connection_in(message: &[u8]) -> Connection {
    let kind = attribute(message, libc::IFLA_LINKINFO)
        .and_then(|nested| attribute_of(nested, libc::IFLA_INFO_KIND))
        .map(until_zero);
    match kind {
        Some(b"tun") => Connection::Tun,
        Some(b"veth") => match number(attribute(message, libc::IFLA_LINK_NETNSID)) {
            Some(peer) if peer >= 0 => Connection::Veth(peer),
            _ => Connection::Other,
        },
        _ => Connection::Other,
    }
}

fn number(value: Option<&[u8]>) -> Option<i32> {
    Some(i32::from_ne_bytes(value?.try_into().ok()?))
}

/// Looks up the numbers of network namespaces, in the namespace of the thread that opened this.
pub struct NetnsNumbers(Netlink);

impl NetnsNumbers {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open() -> io::Result<NetnsNumbers> {
        Ok(NetnsNumbers(Netlink::open()?))
    }

    /// Returns the number of the network namespace of this process; `None` if it has no number here.
    #[must_use]
    pub fn of_process(&self, pid: u32) -> Option<i32> {
        self.ask(NETNSA_PID, pid).ok()?
    }

    /// Returns the number of the network namespace that this file represents; `None` if it has no number here.
    #[must_use]
    pub fn of_file(&self, file: &File) -> Option<i32> {
        self.ask(NETNSA_FD, file.as_raw_fd().cast_unsigned()).ok()?
    }

    fn ask(&self, by: u16, value: u32) -> io::Result<Option<i32>> {
        let mut body = [0; GENMSG_BYTES + ATTRIBUTE_BYTES + 4];
        body[4..6].copy_from_slice(&(ATTRIBUTE_BYTES as u16 + 4).to_ne_bytes());
        body[6..8].copy_from_slice(&by.to_ne_bytes());
        body[8..12].copy_from_slice(&value.to_ne_bytes());
        self.0.request(RTM_GETNSID, 0, &body)?;
        Ok(nsid_in(&self.0.receive()?))
    }
}

fn nsid_in(message: &[u8]) -> Option<i32> {
    if link::kind(message)? != RTM_NEWNSID {
        return None;
    }
    let attributes = message.get(HEADER_BYTES + GENMSG_BYTES..)?;
    number(attribute_of(attributes, NETNSA_NSID)).filter(|&number| number >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_leads_to_nobody_and_the_own_namespace_has_no_number() {
        assert_eq!(connection("lo").unwrap(), Connection::Other);
        assert!(connection("weir-no-such").is_err());
        assert!(connection("a\0b").is_err());
        let numbers = NetnsNumbers::open().unwrap();
        // Both are `None`, unless the namespace was given a number for itself. No Linux process has the id
        // below.
        let own = File::open("/proc/thread-self/ns/net").unwrap();
        assert_eq!(numbers.of_process(std::process::id()), numbers.of_file(&own));
        assert_eq!(numbers.of_process(4_194_305), None);
    }

    #[test]
    fn answers_that_are_none_have_no_number() {
        let answer = |kind: u16, nsid: i32| {
            let mut message = vec![0; HEADER_BYTES + GENMSG_BYTES];
            message[4..6].copy_from_slice(&kind.to_ne_bytes());
            message.extend_from_slice(&8u16.to_ne_bytes());
            message.extend_from_slice(&NETNSA_NSID.to_ne_bytes());
            message.extend_from_slice(&nsid.to_ne_bytes());
            message
        };
        assert_eq!(nsid_in(&answer(RTM_NEWNSID, 7)), Some(7));
        assert_eq!(nsid_in(&answer(RTM_NEWNSID, -1)), None, "not assigned");
        assert_eq!(nsid_in(&answer(libc::NLMSG_ERROR as u16, 7)), None);
        let whole = answer(RTM_NEWNSID, 7);
        (0..whole.len()).for_each(|length| assert_eq!(nsid_in(&whole[..length]), None));
    }
}
