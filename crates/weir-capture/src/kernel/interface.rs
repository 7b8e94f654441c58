//! Facts about an interface from the kernel, in the caller's network namespace.
//!
//! They come from ioctl and rtnetlink. /sys shows the namespace in which it was mounted; it is read only
//! for facts that no other interface reports, and only if that namespace is the caller's.

mod ethtool;
mod filters;
mod link;
mod missed;
pub mod neighbour;
mod netlink;
mod own_traffic;
mod pattern;
mod peer;
mod presence;
mod watch;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub use ethtool::{Channels, Driver, Feature, Rss, RxRing};
pub(crate) use filters::hooks_qdisc;
pub use filters::{Filter, filters};
pub use link::members;
pub use missed::Missed;
pub use own_traffic::{OwnTraffic, addresses, own_traffic};
pub use pattern::LinkPattern;
pub use peer::{Connection, NetnsNumbers, connection};
pub(crate) use presence::Presence;
pub use watch::{Link, LinkEvent, LinkWatch};

use crate::error::CaptureError;
use crate::feed::direction::Direction;
use crate::kernel::netns::{NetnsName, ask_in};

/// LINKTYPE_ETHERNET and LINKTYPE_RAW. Source: draft-ietf-opsawg-pcaplinktype.
const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;

/// Longest frame that Wireshark (`WTAP_MAX_PACKET_SIZE_STANDARD`) and tcpdump (`MAXIMUM_SNAPLEN`) accept in
/// a file.
const OTHERS_CAPLEN_MAX: u32 = 262_144;
/// Length of an Ethernet header and two VLAN tags.
const LINK_HEADER_BYTES_MAX: u32 = 22;

/// An interface that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name when it was looked up.
    pub name: String,
    /// The kernel's index.
    pub index: u32,
    /// Pcap link type of its frames.
    pub link_type: u16,
    /// Largest packet that it carries, without the link-layer header.
    pub mtu: u32,
}

impl Interface {
    /// Returns the length of the longest frame that the interface sends or receives, by its own settings: a frame of
    /// its MTU, or a super-frame. On a veth, the peer limits received frames and may allow longer ones.
    pub(crate) fn frame_bytes_max(&self) -> u32 {
        frame_bytes_max(self.index, self.mtu)
    }

    /// Returns notes for the user about a capture in this direction that keeps at most `caplen_max` bytes of a frame.
    pub(crate) fn notes(&self, direction: Direction, caplen_max: u32) -> Vec<String> {
        let long = long_frames_note(&self.name, self.frame_bytes_max(), caplen_max);
        self.twice_note(direction).into_iter().chain(long).collect()
    }

    /// Returns a note for the loopback device: an engine that captures both directions gets every packet twice.
    fn twice_note(&self, direction: Direction) -> Option<String> {
        (self.name == "lo" && direction == Direction::Both).then(|| {
            "the loopback device shows every packet twice, going out and coming in; --direction in \
             shows each once"
                .to_owned()
        })
    }
}

/// A socket for ioctl requests about interfaces.
#[derive(Debug)]
pub struct InterfaceQuery {
    socket: OwnedFd,
}

impl InterfaceQuery {
    /// Opens a socket in the current network namespace. Later answers are about this namespace, even if the thread
    /// changes its own.
    ///
    /// # Errors
    /// [`CaptureError::Os`].
    pub fn new() -> Result<InterfaceQuery, CaptureError> {
        // SAFETY: no pointers are passed; a descriptor or -1 comes back.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(CaptureError::last_os("opening a socket to ask about interfaces"));
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        Ok(InterfaceQuery { socket: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Looks an interface up.
    ///
    /// # Errors
    /// [`CaptureError::NoInterface`], [`CaptureError::InterfaceDown`], [`CaptureError::LinkType`].
    pub fn find(&self, name: &str) -> Result<Interface, CaptureError> {
        let missing = || CaptureError::NoInterface { iface: name.to_owned() };
        let ask = |request| self.ask(request, name).map_err(|_| missing());
        // SAFETY: SIOCGIFINDEX fills `ifru_ifindex`; the union is plain data, zeroed before.
        let index = unsafe { ask(libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex } as u32;
        // SAFETY: SIOCGIFHWADDR fills `ifru_hwaddr`.
        let arphrd = unsafe { ask(libc::SIOCGIFHWADDR)?.ifr_ifru.ifru_hwaddr.sa_family };
        // SAFETY: SIOCGIFMTU fills `ifru_mtu`.
        let mtu = unsafe { ask(libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu } as u32;
        if !self.is_up(name).map_err(|_| missing())? {
            return Err(CaptureError::InterfaceDown { iface: name.to_owned() });
        }
        let link_type = match arphrd {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => LINKTYPE_ETHERNET,
            libc::ARPHRD_NONE => LINKTYPE_RAW,
            arphrd => return Err(CaptureError::LinkType { iface: name.to_owned(), arphrd }),
        };
        Ok(Interface { name: name.to_owned(), index, link_type, mtu })
    }

    /// Returns the number of RX queues of the interface, as `ethtool -l` shows it; if the driver does not report it,
    /// the number of entries in /sys; `None` if neither is available.
    #[must_use]
    pub fn rx_queues(&self, name: &str) -> Option<u32> {
        let said = self.channels(name).ok().map(|channels| channels.rx);
        said.filter(|&queues| queues > 0).or_else(|| {
            // SAFETY: SIOCGIFINDEX fills `ifru_ifindex`; the union is plain data, zeroed before.
            let index = unsafe { self.ask(libc::SIOCGIFINDEX, name).ok()?.ifr_ifru.ifru_ifindex };
            queues_in_sys(name, index)
        })
    }

    /// Returns whether the interface of this index still exists, under any name.
    #[must_use]
    pub fn exists(&self, index: u32) -> bool {
        let mut request = zeroed();
        request.ifr_ifru.ifru_ifindex = index as i32;
        self.ioctl(libc::SIOCGIFNAME, &mut request).is_ok()
    }

    /// Returns whether the interface has the flag IFF_PROMISC (`ip link set eth0 promisc on`). Memberships of packet
    /// sockets do not set this flag.
    #[must_use]
    pub fn is_promiscuous(&self, name: &str) -> bool {
        // SAFETY: SIOCGIFFLAGS fills `ifru_flags`.
        let flags =
            self.ask(libc::SIOCGIFFLAGS, name).map(|ifreq| unsafe { ifreq.ifr_ifru.ifru_flags });
        flags.is_ok_and(|flags| i32::from(flags) & libc::IFF_PROMISC != 0)
    }

    fn is_up(&self, name: &str) -> io::Result<bool> {
        // SAFETY: SIOCGIFFLAGS fills `ifru_flags`.
        let flags = unsafe { self.ask(libc::SIOCGIFFLAGS, name)?.ifr_ifru.ifru_flags };
        Ok(i32::from(flags) & libc::IFF_UP != 0)
    }

    fn ask(&self, request: libc::Ioctl, name: &str) -> io::Result<libc::ifreq> {
        let mut ifreq = zeroed();
        named(&mut ifreq, name)?;
        self.ioctl(request, &mut ifreq)?;
        Ok(ifreq)
    }

    fn ioctl(&self, request: libc::Ioctl, ifreq: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: all requests passed here read and fill one `ifreq`, which is borrowed mutably for
        // the call; the descriptor is open as long as `self` is.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), request, ifreq) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// As [`Interface::frame_bytes_max`].
pub(crate) fn frame_bytes_max(ifindex: u32, mtu: u32) -> u32 {
    link::super_frame_bytes_max(ifindex).max(mtu).saturating_add(LINK_HEADER_BYTES_MAX)
}

/// Returns a note for the user if other programs refuse files with frames of this length.
fn long_frames_note(iface: &str, frame_bytes_max: u32, caplen_max: u32) -> Option<String> {
    (frame_bytes_max.min(caplen_max) > OTHERS_CAPLEN_MAX).then(|| {
        format!(
            "{iface} takes super-frames of up to {frame_bytes_max} bytes (BIG TCP); Wireshark and tcpdump refuse files \
             with frames of more than {OTHERS_CAPLEN_MAX}, which --snaplen {OTHERS_CAPLEN_MAX} cuts"
        )
    })
}

/// Counts the RX queues by the entries in /sys, for drivers without `ethtool -l`. Returns `None` unless the thread is
/// in the network namespace of the process, which /sys shows.
fn queues_in_sys(name: &str, index: i32) -> Option<u32> {
    let netns = |whose| std::fs::read_link(format!("/proc/{whose}/ns/net")).ok();
    if netns("thread-self")? != netns("self")? {
        return None;
    }
    let folder = std::path::Path::new("/sys/class/net").join(name);
    // After `nsenter --net`, /sys still shows the previous namespace.
    let there = std::fs::read_to_string(folder.join("ifindex")).ok()?;
    if there.trim().parse() != Ok(index) {
        return None;
    }
    let entries = std::fs::read_dir(folder.join("queues")).ok()?.flatten();
    let queues = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-"));
    Some(queues.count() as u32).filter(|&queues| queues > 0)
}

/// Sets the name in a request. The kernel needs a terminating zero within the field.
fn named(ifreq: &mut libc::ifreq, name: &str) -> io::Result<()> {
    if name.is_empty() || name.len() >= ifreq.ifr_name.len() {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (to, from) in ifreq.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(())
}

fn zeroed() -> libc::ifreq {
    // SAFETY: `ifreq` is plain old data of integers and byte arrays; all zeroes is a value of it.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Returns the pcapng link type of an interface's frames.
///
/// # Errors
/// As [`InterfaceQuery::find`] and [`ask_in`].
pub fn link_type(netns: Option<&NetnsName>, iface: &str) -> Result<u16, CaptureError> {
    let found = ask_in(netns, || InterfaceQuery::new()?.find(iface))?;
    let named = |error: CaptureError| match netns {
        Some(netns) => error.in_netns(netns),
        None => error,
    };
    Ok(found.map_err(named)?.link_type)
}

/// Keeps interfaces promiscuous as long as it lives. The kernel counts such memberships, and removes these
/// when their socket closes, also after SIGKILL.
#[derive(Debug)]
pub struct Promiscuity {
    socket: OwnedFd,
}

impl Promiscuity {
    /// Sets promiscuous mode on an interface.
    ///
    /// # Errors
    /// [`CaptureError::NoRights`] or [`CaptureError::Os`].
    pub fn new(interface: &Interface) -> Result<Promiscuity, CaptureError> {
        let promiscuity = Promiscuity::of_none(&interface.name)?;
        let doing = format!("promiscuous mode on {}", interface.name);
        promiscuity.add(interface.index).map_err(CaptureError::os(doing))?;
        Ok(promiscuity)
    }

    /// Creates a value for interfaces that are added and removed later. Opens a packet socket that receives nothing
    /// (protocol 0). `source` is the name of the source in errors.
    ///
    /// # Errors
    /// As [`new`](Promiscuity::new).
    pub(crate) fn of_none(source: &str) -> Result<Promiscuity, CaptureError> {
        // SAFETY: no pointers are passed; a descriptor or -1 comes back.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            let what = format!("promiscuous mode on {source}");
            return Err(match error.raw_os_error() {
                Some(libc::EPERM) => CaptureError::NoRights { what, needs: "CAP_NET_RAW" },
                _ => CaptureError::Os { doing: what, source: error },
            });
        }
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        Ok(Promiscuity { socket: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Sets promiscuous mode on one more interface.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn add(&self, ifindex: u32) -> io::Result<()> {
        self.request(libc::PACKET_ADD_MEMBERSHIP, ifindex)
    }

    /// Ends promiscuous mode on an interface, which may have been removed.
    pub(crate) fn remove(&self, ifindex: u32) {
        // This fails if the interface has been removed; its memberships were removed with it.
        let _ = self.request(libc::PACKET_DROP_MEMBERSHIP, ifindex);
    }

    fn request(&self, option: libc::c_int, ifindex: u32) -> io::Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: ifindex as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        // SAFETY: the option takes one `packet_mreq`, which lives through the call, and its size.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                option,
                (&raw const request).cast(),
                size_of_val(&request) as u32,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_counted_where_the_driver_does_not_say() {
        let query = InterfaceQuery::new().unwrap();
        assert!(query.channels("lo").is_err());
        assert_eq!((query.rx_queues("lo"), query.rx_queues("weir-none0")), (Some(1), None));
        // An interface of the same name in another namespace.
        assert_eq!((queues_in_sys("lo", 1), queues_in_sys("lo", 77)), (Some(1), None));
    }

    #[test]
    fn frames_that_others_refuse_are_said_to_be_possible() {
        let note =
            |frame_bytes_max, caplen_max| long_frames_note("eth0", frame_bytes_max, caplen_max);
        assert!(note(524_302, 528_384).is_some_and(|note| note.contains("524302 bytes")));
        assert_eq!(note(524_302, 262_144), None);
        assert_eq!(note(196_630, 528_384), None);
    }

    #[test]
    fn only_loopback_seen_both_ways_shows_packets_twice() {
        let note = |name: &str, direction| {
            let name = name.to_owned();
            Interface { name, index: 1, link_type: 1, mtu: 1500 }.twice_note(direction)
        };
        assert!(note("lo", Direction::Both).is_some_and(|note| note.contains("--direction in")));
        assert_eq!(note("lo", Direction::In), None);
        assert_eq!(note("eth0", Direction::Both), None);
    }
}
