//! Links as rtnetlink tells of them, in the caller's network namespace: the attributes of one, and which
//! belong to a master.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of `struct nlmsghdr`, of `struct ifinfomsg`, and of the head of an attribute. Source:
/// linux/netlink.h, linux/rtnetlink.h.
const NLMSG_BYTES: usize = 16;
const IFINFO_BYTES: usize = 16;
const ATTRIBUTE_BYTES: usize = 4;
/// The kernel fills at most so much of a buffer for a dump, and one link's answer is smaller.
const ANSWER_BYTES: usize = 32 * 1024;

/// The kernel's answer about the link of this index: one message, for [`attribute`].
pub(super) fn ask(ifindex: u32) -> io::Result<Vec<u8>> {
    let socket = socket()?;
    send(&socket, libc::NLM_F_REQUEST, ifindex, &[])?;
    receive(&socket)
}

/// Names of the interfaces whose master has this index: a bond's, a team's or a bridge's, in the order that
/// the kernel has them.
///
/// # Errors
/// What the kernel says.
pub fn members(master: u32) -> io::Result<Vec<String>> {
    let socket = socket()?;
    let mut wish = [0u8; ATTRIBUTE_BYTES + 4];
    let bytes = wish.len() as u16;
    wish[0..2].copy_from_slice(&bytes.to_ne_bytes());
    wish[2..4].copy_from_slice(&libc::IFLA_MASTER.to_ne_bytes());
    wish[4..8].copy_from_slice(&master.to_ne_bytes());
    send(&socket, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, 0, &wish)?;
    let mut names = Vec::new();
    loop {
        let answer = receive(&socket)?;
        let mut rest = answer.as_slice();
        while let Some((message, more)) = next_message(rest) {
            if kind(message) != Some(libc::RTM_NEWLINK) {
                // NLMSG_DONE, or NLMSG_ERROR.
                return Ok(names);
            }
            // Kernels that do not heed the wish tell of all links.
            if attribute(message, libc::IFLA_MASTER) == Some(&master.to_ne_bytes())
                && let Some(name) = attribute(message, libc::IFLA_IFNAME)
            {
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            rest = more;
        }
        if answer.is_empty() {
            return Ok(names);
        }
    }
}

/// The value of an attribute in an RTM_NEWLINK message.
pub(super) fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    if kind(message)? != libc::RTM_NEWLINK {
        return None;
    }
    let half = |at: usize| Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let mut at = NLMSG_BYTES + IFINFO_BYTES;
    loop {
        let (length, kind) = (usize::from(half(at)?), half(at + 2)?);
        let value = message.get(at + ATTRIBUTE_BYTES..at + length.max(ATTRIBUTE_BYTES))?;
        if kind == wanted {
            return Some(value);
        }
        // A length below its own header would stand still.
        at += length.max(ATTRIBUTE_BYTES).next_multiple_of(4);
    }
}

fn kind(message: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?))
}

/// The first message, and what follows it.
fn next_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?) as usize;
    if length < NLMSG_BYTES {
        return None;
    }
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((bytes.get(..length)?, &bytes[next..]))
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; a descriptor or -1 comes back.
    let fd = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends an RTM_GETLINK with these attributes.
fn send(socket: &OwnedFd, flags: libc::c_int, ifindex: u32, attributes: &[u8]) -> io::Result<()> {
    let mut request = vec![0u8; NLMSG_BYTES + IFINFO_BYTES];
    request.extend_from_slice(attributes);
    let bytes = request.len() as u32;
    request[0..4].copy_from_slice(&bytes.to_ne_bytes());
    request[4..6].copy_from_slice(&libc::RTM_GETLINK.to_ne_bytes());
    request[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
    request[NLMSG_BYTES + 4..NLMSG_BYTES + 8].copy_from_slice(&ifindex.to_ne_bytes());
    // SAFETY: the buffer is borrowed for the call and its true length is passed; an unconnected
    // netlink socket sends to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn receive(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut answer = vec![0u8; ANSWER_BYTES];
    // SAFETY: the buffer is borrowed for the call; the kernel writes at most `answer.len()` bytes.
    let got =
        unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    answer.truncate(got as usize);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_tells_its_name_and_nobody_belongs_to_the_loopback_device() {
        let answer = ask(1).unwrap();
        assert_eq!(attribute(&answer, libc::IFLA_IFNAME), Some(&b"lo\0"[..]));
        assert_eq!(members(1).unwrap(), [""; 0]);
    }

    #[test]
    fn hostile_lengths_end_the_search() {
        let mut message = vec![0u8; 64];
        message[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
        assert_eq!(attribute(&message, 7), None);
        message[32..34].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert_eq!(attribute(&message, 0), None);
        assert_eq!(attribute(&[], 0), None);
        for length in [0u32, 15, 65, u32::MAX] {
            message[0..4].copy_from_slice(&length.to_ne_bytes());
            assert!(next_message(&message).is_none(), "{length}");
        }
        message[0..4].copy_from_slice(&63u32.to_ne_bytes());
        assert!(
            next_message(&message)
                .is_some_and(|(first, rest)| first.len() == 63 && rest.is_empty())
        );
    }
}
