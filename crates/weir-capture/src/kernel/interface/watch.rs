//! The links of a network namespace and their changes, from one rtnetlink socket. Needs no privileges.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::link::{
    ATTRIBUTE_BYTES, IFINFO_BYTES, attribute, end_of_dump, info, kind, next_message,
};
use super::netlink::{HEADER_BYTES, Netlink};
use crate::error::CaptureError;

/// A link as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The kernel's index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `IFF_*`, linux/if.h.
    pub flags: u32,
    /// `ARPHRD_*`, linux/if_arp.h: the link type of its frames.
    pub arphrd: u16,
    /// Largest packet that it carries, without the link-layer header.
    pub mtu: u32,
}

impl Link {
    /// Returns whether the link is administratively up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// Returns whether the link has a carrier: a cable is connected, the peer is up, or a process holds the tap.
    #[must_use]
    pub fn has_carrier(&self) -> bool {
        self.flags & IFF_LOWER_UP != 0
    }

    /// Returns whether the link's frames begin with an Ethernet header.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        matches!(self.arphrd, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
    }
}

/// A change to a link. Changes to one link come in the order in which they happened. If the kernel's
/// messages were lost, the difference between the known and the present state comes instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The link appeared, up or down.
    Appeared(Link),
    /// The link was removed, or moved to another network namespace. Contains its last state.
    Gone(Link),
    /// The link was set up.
    Up(Link),
    /// The link was set down.
    Down(Link),
    /// The link was renamed.
    Renamed {
        /// The link, with its new name.
        link: Link,
        /// The old name.
        from: String,
    },
    /// The type of its link-layer header or its MTU changed.
    Changed(Link),
    /// The link gained or lost its carrier, as a persistent tap does when a process opens or closes it. Reported only
    /// after [`LinkWatch::tell_carriers`].
    Carrier(Link),
}

/// Watches the links of the network namespace in which it was opened.
///
/// Its descriptor is readable when [`events`](LinkWatch::events) has something to read.
pub struct LinkWatch {
    socket: Netlink,
    port: u32,
    links: Links,
    buffer: Vec<u8>,
    /// An error that the next call returns; the events that were read before it are returned first.
    failed: Option<io::Error>,
}

/// The flag of a link with a carrier. Source: linux/if.h.
const IFF_LOWER_UP: u32 = 1 << 16;
/// The group of link notifications, and the mask that leaves out statistics. Source: linux/rtnetlink.h,
/// linux/if_link.h.
const RTNLGRP_LINK: libc::c_uint = 1;
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
/// `NLM_F_DUMP_INTR`: links changed during the dump, and it may lack some. Source: linux/netlink.h.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// The kernel writes at most this much into a buffer for a dump. A longer message counts as lost.
const BUFFER_BYTES: usize = 32 << 10;
/// Receive buffer of the socket. The message of a link takes about 1.5 KiB, 3 KiB with the kernel's overhead.
const SOCKET_BYTES: libc::c_int = 1 << 20;
/// Most datagrams that one call reads, so that it returns even during a flood. The descriptor stays readable.
const DATAGRAMS_MAX: usize = 256;
/// Longest time for the first dump. The kernel answers within the request itself.
const DUMP_LIMIT: Duration = Duration::from_secs(5);

impl LinkWatch {
    /// Begins to watch, in the calling thread's network namespace. [`links`](LinkWatch::links) has the present links,
    /// and later changes come as events.
    ///
    /// # Errors
    /// [`CaptureError::Os`].
    pub fn open() -> Result<LinkWatch, CaptureError> {
        let failed = CaptureError::os("watching interfaces");
        Self::begin().map_err(failed)
    }

    fn begin() -> io::Result<LinkWatch> {
        let socket = Netlink::open()?;
        socket.set_buffer(SOCKET_BYTES)?;
        // The socket joins the group before the dump, so that changes in between are reported twice, not missed.
        socket.join(RTNLGRP_LINK)?;
        let buffer = vec![0; BUFFER_BYTES];
        let mut watch =
            LinkWatch { socket, port: 0, links: Links::default(), buffer, failed: None };
        watch.dump()?;
        watch.port = watch.socket.port()?;
        let deadline = Instant::now() + DUMP_LIMIT;
        while watch.links.dump.is_some() || watch.links.must_dump {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            watch.wait(left)?;
            // The events are dropped: `links` already contains every link that existed before the end of
            // the dump.
            watch.events()?;
        }
        Ok(watch)
    }

    /// Returns the present links, as of the last event.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.links.known.values()
    }

    /// Also reports changes of carriers from now on.
    pub fn tell_carriers(&mut self) {
        self.links.tells_carriers = true;
    }

    /// Reads events; returns an empty list if nothing has changed. Does not wait.
    ///
    /// # Errors
    /// The kernel's error, after all events that were read before it have been returned. The next call
    /// repeats a dump that failed.
    pub fn events(&mut self) -> io::Result<Vec<LinkEvent>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut events = Vec::new();
        match self.read(&mut events) {
            Err(error) if events.is_empty() => Err(error),
            read => {
                self.failed = read.err();
                Ok(events)
            }
        }
    }

    fn read(&mut self, events: &mut Vec<LinkEvent>) -> io::Result<()> {
        let mut datagrams = 0;
        // A pending dump must not wait for another message.
        while datagrams < DATAGRAMS_MAX || self.links.wants_dump() {
            datagrams += 1;
            match self.socket.receive_now(&mut self.buffer) {
                Ok(bytes) => match self.buffer.get(..bytes) {
                    Some(datagram) => self.links.take(datagram, self.port, events)?,
                    None => self.links.lost(),
                },
                // The socket's buffer was full, and the kernel dropped a message.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => self.links.lost(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The dump begins only when the socket is empty: after an overrun, the kernel queues
                // nothing until then, and reports the overrun only once. Changes before this point may be
                // lost without notice; the dump contains them.
                //
                // Source: `netlink_overrun`, `netlink_rcv_wake`, net/netlink/af_netlink.c.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.links.wants_dump() {
                        break;
                    }
                    self.dump()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until there is something to read, at most `limit`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn wait(&self, limit: Duration) -> io::Result<()> {
        let timeout = limit.try_into().unwrap_or(rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut wait = [PollFd::new(&self.socket, PollFlags::IN)];
        match rustix::event::poll(&mut wait, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn dump(&mut self) -> io::Result<()> {
        let number = self.links.begin_dump();
        let mut mask = [0u8; ATTRIBUTE_BYTES + 4];
        mask[0..2].copy_from_slice(&((ATTRIBUTE_BYTES + 4) as u16).to_ne_bytes());
        mask[2..4].copy_from_slice(&libc::IFLA_EXT_MASK.to_ne_bytes());
        mask[4..8].copy_from_slice(&RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let body = [&info(0)[..], &mask].concat();
        self.socket.request_numbered(number, libc::RTM_GETLINK, libc::NLM_F_DUMP, &body)
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The known links, and how messages change them. This part has no socket, so that tests can feed it messages.
#[derive(Default)]
struct Links {
    known: BTreeMap<u32, Link>,
    dump: Option<Dump>,
    /// Messages were lost: the known state may be out of date.
    must_dump: bool,
    dumps: u32,
    tells_carriers: bool,
}

/// A dump that has not ended.
struct Dump {
    /// Sequence number in each of its messages.
    number: u32,
    /// Links that it has named.
    named: BTreeSet<u32>,
    /// Links that a notification has named since it began. The kernel puts dump and notifications into one queue, but
    /// not always in the order in which it made them. Later changes are reported again, so the notification is
    /// authoritative.
    notified: BTreeSet<u32>,
    is_interrupted: bool,
}

impl Links {
    /// Begins a dump and returns its number.
    fn begin_dump(&mut self) -> u32 {
        // The number is never 0, which is the number of unsolicited notifications.
        self.dumps = self.dumps.wrapping_add(1).max(1);
        self.must_dump = false;
        let (named, notified) = (BTreeSet::new(), BTreeSet::new());
        self.dump = Some(Dump { number: self.dumps, named, notified, is_interrupted: false });
        self.dumps
    }

    fn lost(&mut self) {
        self.must_dump = true;
    }

    /// Returns whether a dump must begin. A socket has one dump at a time.
    fn wants_dump(&self) -> bool {
        self.must_dump && self.dump.is_none()
    }

    /// Processes one datagram.
    fn take(&mut self, datagram: &[u8], port: u32, events: &mut Vec<LinkEvent>) -> io::Result<()> {
        let (mut rest, mut result) = (datagram, Ok(()));
        while let Some((message, more)) = next_message(rest) {
            result = result.and(self.message(message, port, events));
            rest = more;
        }
        result
    }

    fn message(
        &mut self,
        message: &[u8],
        port: u32,
        events: &mut Vec<LinkEvent>,
    ) -> io::Result<()> {
        let number = self.dump.as_ref().map(|dump| dump.number);
        // Notifications carry the sequence number and the port of the process that made the change.
        let is_dump =
            number.is_some() && word(message, 8) == number && word(message, 12) == Some(port);
        if is_dump {
            let flags = half(message, 6).unwrap_or(0);
            let dump = self.dump.as_mut().expect("it has a number");
            dump.is_interrupted |= flags & NLM_F_DUMP_INTR != 0;
            if let Some(end) = end_of_dump(message) {
                let ended = self.dump.take().expect("it has a number");
                // A dump that was interrupted or failed may lack links: it removes none, and is repeated.
                match end.is_err() || ended.is_interrupted {
                    true => self.must_dump = true,
                    false => self.remove_unnamed(&ended, events),
                }
                return end;
            }
        }
        // Bridges report their ports in messages of family AF_BRIDGE: a port that leaves a bridge still
        // exists.
        if message.get(HEADER_BYTES) != Some(&(libc::AF_UNSPEC as u8)) {
            return Ok(());
        }
        let Some(index) = word(message, HEADER_BYTES + 4) else { return Ok(()) };
        if let Some(dump) = &mut self.dump {
            match is_dump {
                true if dump.notified.contains(&index) => return Ok(()),
                true => dump.named.insert(index),
                false => dump.notified.insert(index),
            };
        }
        match kind(message) {
            Some(libc::RTM_NEWLINK) => {
                if let Some(link) = parse(message, index, self.known.get(&index)) {
                    self.set(link, events);
                }
            }
            Some(libc::RTM_DELLINK) => {
                let gone = self.known.remove(&index);
                events.extend(gone.map(LinkEvent::Gone));
            }
            _ => {}
        }
        Ok(())
    }

    fn set(&mut self, link: Link, events: &mut Vec<LinkEvent>) {
        match self.known.insert(link.index, link.clone()) {
            None => events.push(LinkEvent::Appeared(link)),
            Some(old) => {
                if old.name != link.name {
                    events.push(LinkEvent::Renamed { link: link.clone(), from: old.name.clone() });
                }
                if (old.arphrd, old.mtu) != (link.arphrd, link.mtu) {
                    events.push(LinkEvent::Changed(link.clone()));
                }
                let stays_up = old.is_up() && link.is_up();
                if self.tells_carriers && stays_up && old.has_carrier() != link.has_carrier() {
                    events.push(LinkEvent::Carrier(link.clone()));
                }
                match (old.is_up(), link.is_up()) {
                    (false, true) => events.push(LinkEvent::Up(link)),
                    (true, false) => events.push(LinkEvent::Down(link)),
                    _ => {}
                }
            }
        }
    }

    /// Removes the links that neither the dump nor a notification has named.
    fn remove_unnamed(&mut self, dump: &Dump, events: &mut Vec<LinkEvent>) {
        let is_named = |index| dump.named.contains(index) || dump.notified.contains(index);
        let unnamed: Vec<u32> =
            self.known.keys().filter(|index| !is_named(index)).copied().collect();
        let gone = unnamed.iter().filter_map(|index| self.known.remove(index));
        events.extend(gone.map(LinkEvent::Gone));
    }
}

/// Parses the link of an RTM_NEWLINK message. Messages of wireless events have no name; it is taken from `known`.
fn parse(message: &[u8], index: u32, known: Option<&Link>) -> Option<Link> {
    let text = |name: &[u8]| {
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    };
    let number = |value: &[u8]| Some(u32::from_ne_bytes(*value.first_chunk()?));
    let name = attribute(message, libc::IFLA_IFNAME).map(text);
    let mtu = attribute(message, libc::IFLA_MTU).and_then(number);
    Some(Link {
        index,
        name: name.or_else(|| known.map(|link| link.name.clone()))?,
        arphrd: half(message, HEADER_BYTES + 2)?,
        flags: word(message, HEADER_BYTES + 8)?,
        mtu: mtu.or(known.map(|link| link.mtu)).unwrap_or(0),
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

const _: () = assert!(IFINFO_BYTES == 16, "`struct ifinfomsg`, whose fields are read above");

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
