//! Known frames, sent one by one.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use weir_lab::testbed::End;

use super::within;

/// Puts frames on the link as they are, through the interface's egress hooks.
pub struct Sender {
    socket: OwnedFd,
    /// Bytes that the socket expects before each frame.
    before: &'static [u8],
}

/// `struct virtio_net_hdr`, little-endian: no segmentation, no checksum to compute, and a header of 14 bytes.
const ONLY_ETHERNET: [u8; 10] = [0, 0, 14, 0, 0, 0, 0, 0, 0, 0];
/// linux/if_packet.h.
const PACKET_VNET_HDR: libc::c_int = 15;

impl Sender {
    pub fn new(end: &End) -> Sender {
        within(end, || {
            // SAFETY: no pointers; a descriptor or -1 comes back. Protocol 0: it receives nothing.
            let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
            assert!(fd >= 0, "a packet socket: {}", io::Error::last_os_error());
            // SAFETY: the kernel just gave us this descriptor and nobody else has it.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            // SAFETY: `sockaddr_ll` is plain integers; all zeroes is a value of it.
            let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_ifindex = end.ifindex as i32;
            // SAFETY: the address lives through the call and is as long as is said.
            let bound = unsafe {
                libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32)
            };
            assert_eq!(bound, 0, "binding: {}", io::Error::last_os_error());
            Sender { socket, before: &[] }
        })
    }

    /// A sender whose frames of a page or more have only the Ethernet header in the skb's linear part, and the rest in
    /// page fragments.
    /// Source: `packet_alloc_skb`, net/packet/af_packet.c.
    pub fn paged(end: &End) -> Sender {
        let sender = Sender { before: &ONLY_ETHERNET, ..Sender::new(end) };
        sender.enable(PACKET_VNET_HDR, "PACKET_VNET_HDR");
        sender
    }

    /// A sender whose frames bypass TC.
    pub fn bypassing(end: &End) -> Sender {
        let sender = Sender::new(end);
        sender.enable(libc::PACKET_QDISC_BYPASS, "PACKET_QDISC_BYPASS");
        sender
    }

    fn enable(&self, option: libc::c_int, name: &str) {
        let yes: libc::c_int = 1;
        // SAFETY: the number lives through the call and is as long as is said.
        let set = unsafe {
            let (fd, value) = (self.socket.as_raw_fd(), (&raw const yes).cast());
            libc::setsockopt(fd, libc::SOL_PACKET, option, value, size_of_val(&yes) as u32)
        };
        assert_eq!(set, 0, "{name}: {}", io::Error::last_os_error());
    }

    pub fn send(&self, frame: &[u8]) {
        self.try_send(frame).unwrap_or_else(|error| panic!("sending: {error}"));
    }

    pub fn try_send(&self, frame: &[u8]) -> io::Result<()> {
        let bytes = [self.before, frame].concat();
        let fd = self.socket.as_raw_fd();
        // SAFETY: the bytes are readable for their length during the call.
        let sent = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        assert_eq!(sent, bytes.len() as isize, "a part of the frame was sent");
        Ok(())
    }
}

const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// A frame with this EtherType that begins with `head` and is filled up to `bytes` with a pattern. The pattern
/// reveals bytes that were moved.
pub fn ethernet(ether_type: u16, head: &[u8], bytes: usize) -> Vec<u8> {
    let mut frame = ADDRESSES.to_vec();
    frame.extend(ether_type.to_be_bytes());
    frame.extend(head);
    let from = frame.len();
    frame.extend((from..bytes).map(|at| (at ^ at >> 8) as u8));
    frame
}

/// An Ethernet frame of UDP in IPv4.
pub fn ipv4(bytes: usize) -> Vec<u8> {
    let total = (bytes - 14) as u16;
    let mut head = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
    head[2..4].copy_from_slice(&total.to_be_bytes());
    head.extend([0x80, 0, 0, 9]);
    head.extend((total - 20).to_be_bytes());
    head.extend([0, 0]);
    ethernet(0x0800, &head, bytes)
}

/// An Ethernet frame of UDP in IPv6.
pub fn ipv6(bytes: usize) -> Vec<u8> {
    let payload = (bytes - 54) as u16;
    let mut head = vec![0x60, 0, 0, 0];
    head.extend(payload.to_be_bytes());
    head.extend([17, 64]);
    for last in [1, 2] {
        head.extend([0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    }
    head.extend([0x80, 0, 0, 9]);
    head.extend(payload.to_be_bytes());
    head.extend([0, 0]);
    ethernet(0x86dd, &head, bytes)
}

/// An ARP request without padding, 42 bytes: a veth does not pad short frames.
pub fn arp() -> Vec<u8> {
    let mut head = vec![0, 1, 8, 0, 6, 4, 0, 1];
    head.extend([2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
    ethernet(0x0806, &head, 42)
}

/// A spanning tree frame: IEEE 802.3 with a length field, and LLC.
pub fn llc() -> Vec<u8> {
    ethernet(38, &[0x42, 0x42, 3], 60)
}

/// The frame with a VLAN tag inserted after the MAC addresses.
pub fn tagged(frame: &[u8], protocol: u16, tci: u16) -> Vec<u8> {
    let mut out = frame[..12].to_vec();
    out.extend(protocol.to_be_bytes());
    out.extend(tci.to_be_bytes());
    out.extend(&frame[12..]);
    out
}

pub const CTAG: u16 = 0x8100;
pub const STAG: u16 = 0x88a8;

/// Frames of every kind, no two of them alike. All fit MTU 1500.
pub fn assortment() -> Vec<Vec<u8>> {
    let mut frames = vec![arp(), llc(), ipv4(60), ipv6(62), ipv6(1514), ipv4(1514)];
    frames.extend((61..=67).map(ipv4));
    // Sizes around those at which the ring writers switch to another copy routine.
    frames.extend([127, 128, 129, 130, 255, 256, 257, 1000].map(ipv4));
    frames.push(tagged(&ipv4(60), CTAG, 0x6123));
    frames.push(tagged(&ipv6(77), CTAG, 0x0001));
    frames.push(tagged(&ipv4(1510), CTAG, 0xefff));
    frames.push(tagged(&tagged(&ipv4(60), CTAG, 7), STAG, 0x2007));
    frames.push(tagged(&tagged(&ipv6(501), CTAG, 8), STAG, 9));
    frames.push(tagged(&tagged(&ipv4(99), CTAG, 8), CTAG, 9));
    frames.push(tagged(&arp(), CTAG, 0));
    frames
}
