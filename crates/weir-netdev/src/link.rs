//! Sets up the interface by rtnetlink: MTU, no addresses, up.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

// Source: linux/rtnetlink.h, linux/netlink.h, linux/if_link.h.
const RTM_SETLINK: u16 = 19;
const NLM_F_REQUEST_AND_ACK: u16 = 1 | 4;
const NLMSG_ERROR: u16 = 2;
const IFLA_MTU: u16 = 4;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;

/// Sets the MTU, prevents IPv6 addresses, and brings the interface up.
pub(crate) fn set_up(index: u32, mtu: u32) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let change = |flags, attribute: &[u8]| request(&socket, index, flags, attribute);
    change(0, &attribute(IFLA_MTU, &mtu.to_ne_bytes()))?;
    let mode = attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
    let spec = attribute(IFLA_AF_SPEC, &attribute(libc::AF_INET6 as u16, &mode));
    // This fails in a kernel without IPv6, and if the MTU is below the minimum of IPv6. Then there are no IPv6
    // addresses.
    let _ = change(0, &spec);
    // Other frames that the kernel would send itself are dropped and counted. ARP is not needed.
    change(libc::IFF_UP | libc::IFF_NOARP, &[])
}

/// Returns an attribute, padded as netlink requires.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Sets these flags and this attribute of the link.
fn request(socket: &OwnedFd, index: u32, flags: libc::c_int, attribute: &[u8]) -> io::Result<()> {
    // `struct nlmsghdr`, then `struct ifinfomsg`.
    let mut message = ((32 + attribute.len()) as u32).to_ne_bytes().to_vec();
    message.extend(RTM_SETLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_AND_ACK.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // The mask: the flags to change.
    message.extend(flags.to_ne_bytes());
    message.extend(attribute);
    sendto(socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = [0; 4096];
    let (length, _) = recv(socket, &mut answer, RecvFlags::empty())?;
    let answer = &answer[..length.min(answer.len())];
    let error = |answer: &[u8]| {
        let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
        let error = i32::from_ne_bytes(*answer.get(16..)?.first_chunk()?);
        (kind == NLMSG_ERROR).then_some(error)
    };
    match error(answer) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::Error::other("rtnetlink gave no answer that is one")),
    }
}
