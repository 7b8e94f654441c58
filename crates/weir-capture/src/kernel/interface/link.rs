//! Links by rtnetlink, in the caller's network namespace: the attributes of a link, the members of a
//! master, and the relations between links.

use std::io;

use super::netlink::{HEADER_BYTES, Netlink};

/// Bytes of `struct ifinfomsg`, and of the header of an attribute. Source: linux/rtnetlink.h.
pub(super) const IFINFO_BYTES: usize = 16;
pub(super) const ATTRIBUTE_BYTES: usize = 4;

/// Asks the kernel about the link with this index. Returns its answer: one message, for [`attribute`].
pub(super) fn ask(ifindex: u32) -> io::Result<Vec<u8>> {
    let socket = Netlink::open()?;
    socket.request(libc::RTM_GETLINK, 0, &info(ifindex))?;
    socket.receive()
}

/// Limits of a link's super-frames (BIG TCP): sent (GSO) and received (GRO), in general and for IPv4. Those
/// for IPv4 exist since Linux 6.3. Source: linux/if_link.h.
const IFLA_GSO_MAX_SIZE: u16 = 41;
const IFLA_GRO_MAX_SIZE: u16 = 58;
const IFLA_GSO_IPV4_MAX_SIZE: u16 = 63;
const IFLA_GRO_IPV4_MAX_SIZE: u16 = 64;

/// Returns the length of the longest super-frame that the link with this index may get from the stack or assemble; 0 if
/// the kernel does not report it.
pub(super) fn super_frame_bytes_max(ifindex: u32) -> u32 {
    let Ok(answer) = ask(ifindex) else { return 0 };
    [IFLA_GSO_MAX_SIZE, IFLA_GRO_MAX_SIZE, IFLA_GSO_IPV4_MAX_SIZE, IFLA_GRO_IPV4_MAX_SIZE]
        .into_iter()
        .filter_map(|kind| number(&answer, kind))
        .max()
        .unwrap_or(0)
}

/// Returns the names of the interfaces whose master (bond, team or bridge) has this index, in the kernel's order.
///
/// # Errors
/// The kernel's error.
pub fn members(master: u32) -> io::Result<Vec<String>> {
    let socket = Netlink::open()?;
    let mut by_master = [0u8; ATTRIBUTE_BYTES + 4];
    let bytes = by_master.len() as u16;
    by_master[0..2].copy_from_slice(&bytes.to_ne_bytes());
    by_master[2..4].copy_from_slice(&libc::IFLA_MASTER.to_ne_bytes());
    by_master[4..8].copy_from_slice(&master.to_ne_bytes());
    socket.request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[&info(0)[..], &by_master].concat())?;
    let mut names = Vec::new();
    each_of_dump(&socket, |message| {
        // Kernels that ignore the attribute report all links.
        if attribute(message, libc::IFLA_MASTER) == Some(&master.to_ne_bytes()) {
            names.extend(name(message));
        }
    })?;
    Ok(names)
}

/// Relations of a link to others of its network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkRelations {
    pub(super) index: u32,
    pub(super) name: String,
    /// The link below a VLAN or a macvlan, from which it receives some of the frames.
    pub(super) lower: Option<u32>,
    /// The bridge, bond or team that it belongs to.
    pub(super) master: Option<u32>,
}

/// Kinds of links whose IFLA_LINK is the link below. (For a veth, this attribute is its peer.)
const KINDS_ABOVE: [&[u8]; 5] = [b"vlan", b"macvlan", b"macvtap", b"ipvlan", b"ipvtap"];

/// Returns all links of the network namespace.
pub(super) fn links() -> io::Result<Vec<LinkRelations>> {
    let socket = Netlink::open()?;
    socket.request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &info(0))?;
    let mut links = Vec::new();
    each_of_dump(&socket, |message| links.extend(link(message)))?;
    Ok(links)
}

fn link(message: &[u8]) -> Option<LinkRelations> {
    let index = message.get(HEADER_BYTES + 4..HEADER_BYTES + 8)?.try_into().ok()?;
    let kind = attribute(message, libc::IFLA_LINKINFO)
        .and_then(|nested| attribute_of(nested, libc::IFLA_INFO_KIND))
        .map(until_zero);
    let takes_a_part = kind.is_some_and(|kind| KINDS_ABOVE.contains(&kind));
    // With this attribute, IFLA_LINK is an index in another network namespace.
    let is_here = attribute(message, libc::IFLA_LINK_NETNSID).is_none();
    Some(LinkRelations {
        index: u32::from_ne_bytes(index),
        name: name(message)?,
        lower: number(message, libc::IFLA_LINK).filter(|_| takes_a_part && is_here),
        master: number(message, libc::IFLA_MASTER),
    })
}

/// Returns the value of a 32-bit attribute.
fn number(message: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_ne_bytes(attribute(message, kind)?.try_into().ok()?))
}

fn name(message: &[u8]) -> Option<String> {
    let name = until_zero(attribute(message, libc::IFLA_IFNAME)?);
    Some(String::from_utf8_lossy(name).into_owned())
}

pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Calls `call` for every message of the requested dump.
fn each_of_dump(socket: &Netlink, mut call: impl FnMut(&[u8])) -> io::Result<()> {
    loop {
        let answer = socket.receive()?;
        let mut rest = answer.as_slice();
        while let Some((message, more)) = next_message(rest) {
            if let Some(end) = end_of_dump(message) {
                return end;
            }
            call(message);
            rest = more;
        }
        if answer.is_empty() {
            return Ok(());
        }
    }
}

/// Returns the result of a dump, if this message ends it. NLMSG_DONE and NLMSG_ERROR both contain a number after their
/// header, which is a negative errno if the dump failed. A dump may fail after some links have been reported.
///
/// Source: `netlink_dump_done` and `netlink_ack`, net/netlink/af_netlink.c.
pub(super) fn end_of_dump(message: &[u8]) -> Option<io::Result<()>> {
    let ends = [libc::NLMSG_DONE, libc::NLMSG_ERROR].map(|kind| kind as u16);
    let code = || message.get(HEADER_BYTES..)?.first_chunk().copied();
    ends.contains(&kind(message)?).then(|| match code().map_or(0, i32::from_ne_bytes) {
        code @ ..0 => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        _ => Ok(()),
    })
}

/// Returns the value of an attribute in an RTM_NEWLINK message.
pub(super) fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    if kind(message)? != libc::RTM_NEWLINK {
        return None;
    }
    attribute_of(message.get(HEADER_BYTES + IFINFO_BYTES..)?, wanted)
}

/// Returns the value of an attribute in a list of attributes.
pub(super) fn attribute_of(attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    let half = |at: usize| Some(u16::from_ne_bytes(attributes.get(at..at + 2)?.try_into().ok()?));
    let mut at = 0;
    loop {
        let (length, kind) = (usize::from(half(at)?), half(at + 2)?);
        let value = attributes.get(at + ATTRIBUTE_BYTES..at + length.max(ATTRIBUTE_BYTES))?;
        if kind == wanted {
            return Some(value);
        }
        // `max` ensures progress if the length is less than that of the header.
        at += length.max(ATTRIBUTE_BYTES).next_multiple_of(4);
    }
}

pub(super) fn kind(message: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?))
}

/// Splits off the first message. Returns it and the bytes after it.
pub(super) fn next_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?) as usize;
    if length < HEADER_BYTES {
        return None;
    }
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((bytes.get(..length)?, &bytes[next..]))
}

/// Returns the `struct ifinfomsg` that requests the link with this index; 0 requests all links.
pub(super) fn info(ifindex: u32) -> [u8; IFINFO_BYTES] {
    let mut info = [0u8; IFINFO_BYTES];
    info[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    info
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_tells_its_name_and_nobody_belongs_to_the_loopback_device() {
        let answer = ask(1).unwrap();
        assert_eq!(attribute(&answer, libc::IFLA_IFNAME), Some(&b"lo\0"[..]));
        assert_eq!(members(1).unwrap(), [""; 0]);
        assert!(super_frame_bytes_max(1) >= 65_536, "{}", super_frame_bytes_max(1));
        let lo = LinkRelations { index: 1, name: "lo".to_owned(), lower: None, master: None };
        assert!(links().unwrap().contains(&lo), "{:?}", links());
    }

    #[test]
    fn a_dump_that_fails_is_no_dump_that_ends() {
        let end = |kind: i32, code: &[u8]| {
            let mut message = [&[0; HEADER_BYTES][..], code].concat();
            message[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
            end_of_dump(&message).map(|end| end.map_err(|error| error.raw_os_error()))
        };
        let (fine, failed) = (0i32.to_ne_bytes(), (-libc::EBUSY).to_ne_bytes());
        for kind in [libc::NLMSG_DONE, libc::NLMSG_ERROR] {
            assert_eq!(end(kind, &fine), Some(Ok(())));
            assert_eq!(end(kind, &failed), Some(Err(Some(libc::EBUSY))));
            assert_eq!(end(kind, &[]), Some(Ok(())), "old kernels");
        }
        assert_eq!(end(i32::from(libc::RTM_NEWLINK), &failed), None);
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
