//! Links as rtnetlink tells of them, in the caller's network namespace: the attributes of one, and which
//! belong to a master.

use std::io;

use super::netlink::{HEADER_BYTES, Netlink};

/// Bytes of `struct ifinfomsg`, and of the head of an attribute. Source: linux/rtnetlink.h.
pub(super) const IFINFO_BYTES: usize = 16;
pub(super) const ATTRIBUTE_BYTES: usize = 4;

/// The kernel's answer about the link of this index: one message, for [`attribute`].
pub(super) fn ask(ifindex: u32) -> io::Result<Vec<u8>> {
    let socket = Netlink::open()?;
    socket.request(libc::RTM_GETLINK, 0, &info(ifindex))?;
    socket.receive()
}

/// Names of the interfaces whose master has this index: a bond's, a team's or a bridge's, in the order that
/// the kernel has them.
///
/// # Errors
/// What the kernel says.
pub fn members(master: u32) -> io::Result<Vec<String>> {
    let socket = Netlink::open()?;
    let mut wish = [0u8; ATTRIBUTE_BYTES + 4];
    let bytes = wish.len() as u16;
    wish[0..2].copy_from_slice(&bytes.to_ne_bytes());
    wish[2..4].copy_from_slice(&libc::IFLA_MASTER.to_ne_bytes());
    wish[4..8].copy_from_slice(&master.to_ne_bytes());
    socket.request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[&info(0)[..], &wish].concat())?;
    let mut names = Vec::new();
    loop {
        let answer = socket.receive()?;
        let mut rest = answer.as_slice();
        while let Some((message, more)) = next_message(rest) {
            if let Some(end) = end_of_dump(message) {
                return end.map(|()| names);
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

/// Whether the dump is at its end, and what ended it: NLMSG_DONE and NLMSG_ERROR both bring a number behind their
/// header, an errno below zero if it failed, and the kernel may fail when some links are told already.
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

/// The value of an attribute in an RTM_NEWLINK message.
pub(super) fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    if kind(message)? != libc::RTM_NEWLINK {
        return None;
    }
    let half = |at: usize| Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let mut at = HEADER_BYTES + IFINFO_BYTES;
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

pub(super) fn kind(message: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?))
}

/// The first message, and what follows it.
pub(super) fn next_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(0..4)?.try_into().ok()?) as usize;
    if length < HEADER_BYTES {
        return None;
    }
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((bytes.get(..length)?, &bytes[next..]))
}

/// `struct ifinfomsg` that asks for the link of this index, or for all.
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
