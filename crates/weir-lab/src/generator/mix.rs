//! Sends realistic traffic for the demo: a short conversation on a small network with common protocols, repeated from
//! fixed templates.
//!
//! Every call sends the same bytes. Checksums are correct, so that protocol analysers report no
//! errors. Addresses are those for documentation (RFC 5737, RFC 3849).

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use weir_frame::checksum::{fold, word_sum};

use super::counter::Counter;
use super::pace::{self, Wire};
use super::packet::Socket;
use super::{GenOptions, Rate};
use crate::testbed::ifindex;
use crate::{Error, Result};

/// The amount and the rate of the mix.
#[derive(Debug, Clone, PartialEq)]
pub struct MixOptions {
    /// Frames a second.
    pub rate_pps: f64,
    /// Stop after this number of frames. The conversation is repeated as often as needed.
    pub frames: Option<u64>,
    /// Stop after this time.
    pub duration: Option<Duration>,
}

impl Default for MixOptions {
    /// Sends the conversation once, at 1000 frames a second.
    fn default() -> Self {
        MixOptions { rate_pps: 1000.0, frames: Some(frames().len() as u64), duration: None }
    }
}

/// Result of sending the mix.
#[derive(Debug, Clone, PartialEq)]
pub struct MixReport {
    /// Frames that the link accepted, by its own count.
    pub sent: u64,
    /// Frames handed to the kernel: those of [`frames`] in order, repeatedly.
    pub attempted: u64,
    /// Time from before the first frame to after the last one.
    pub duration: Duration,
}

/// Sends the mix out of `iface`, in the calling thread's network namespace.
///
/// # Errors
/// [`Error::NoInterface`], [`Error::Send`] without CAP_NET_RAW or if the interface is down,
/// [`Error::Option`] for a rate that is not above zero.
pub fn run(iface: &str, options: &MixOptions, stop: &AtomicBool) -> Result<MixReport> {
    if !(options.rate_pps > 0.0 && options.rate_pps.is_finite()) {
        return Err(super::option("rate", "must be above zero"));
    }
    let counter = Counter::of_link(iface)?;
    let ifindex = ifindex(iface)?;
    let paced = GenOptions {
        rate: Rate::Pps(options.rate_pps),
        frames: options.frames,
        duration: options.duration,
        ..GenOptions::default()
    };
    let paced = pace::run(&paced, stop, |turns| {
        let socket = Socket::open(iface, ifindex)?;
        turns.serve(&mut Mix { iface, socket, counter: &counter, frames: frames() })
    })?;
    let sent = counter.settled(paced.attempted)?;
    Ok(MixReport { sent, attempted: paced.attempted, duration: paced.duration })
}

struct Mix<'a> {
    iface: &'a str,
    socket: Socket,
    counter: &'a Counter<'a>,
    frames: Vec<MixFrame>,
}

impl Wire for Mix<'_> {
    fn send(&mut self, first: u64, frames: u32) -> Result<u64> {
        for number in first..first + u64::from(frames) {
            let frame = &self.frames[(number % self.frames.len() as u64) as usize].bytes;
            self.socket.send_all(&[frame]).map_err(|source| Error::Send {
                iface: self.iface.to_owned(),
                what: "send on a packet socket",
                source,
            })?;
        }
        Ok(u64::from(frames))
    }

    fn check(&mut self) -> Result<()> {
        self.counter.now().map(|_| ())
    }
}

/// One frame of the mix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixFrame {
    /// A short description.
    pub what: &'static str,
    /// Bytes of the frame, at least 60, without FCS.
    pub bytes: Vec<u8>,
}

const CLIENT_MAC: [u8; 6] = [0x02, 0x57, 0x45, 0x49, 0x52, 0x0a];
const SERVER_MAC: [u8; 6] = [0x02, 0x57, 0x45, 0x49, 0x52, 0x0b];
const CLIENT: [u8; 4] = [198, 51, 100, 10];
const SERVER: [u8; 4] = [198, 51, 100, 11];
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const PUSH_ACK: u8 = 0x18;
const FIN_ACK: u8 = 0x11;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// Returns the whole conversation, in the order of sending. The same interface sends both sides.
pub fn frames() -> Vec<MixFrame> {
    let mut talk = Vec::new();
    let mut say = |what, bytes: Vec<u8>| talk.push(MixFrame { what, bytes: padded(bytes) });
    let there = |kind, payload: &[u8]| ipv4(CLIENT, SERVER, kind, payload);
    let back = |kind, payload: &[u8]| ipv4(SERVER, CLIENT, kind, payload);

    say("ARP request", arp(1, CLIENT_MAC, CLIENT, [0; 6], SERVER));
    say("ARP reply", arp(2, SERVER_MAC, SERVER, CLIENT_MAC, CLIENT));
    say("ICMP echo request", there(ICMP, &icmp_echo(8, 56)));
    say("ICMP echo reply", back(ICMP, &icmp_echo(0, 56)));
    say("DNS query", there(UDP, &udp(40_001, 53, &dns(false))));
    say("DNS answer", back(UDP, &udp(53, 40_001, &dns(true))));

    let get = b"GET /river HTTP/1.1\r\nHost: weir.example\r\n\r\n";
    let mut page =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2800\r\n\r\n".to_vec();
    let head = page.len();
    page.extend((0..2800).map(|i| b"the river passes and is measured\n"[i % 33]));
    let (first, second) = page.split_at(1460);
    let client = |seq: usize, ack: usize, flags, data: &[u8]| {
        there(
            TCP,
            &tcp(
                40_002,
                80,
                1000 + seq as u32,
                if ack == 0 { 0 } else { 4999 + ack as u32 },
                flags,
                data,
            ),
        )
    };
    let server = |seq: usize, ack: usize, flags, data: &[u8]| {
        back(TCP, &tcp(80, 40_002, 5000 + seq as u32, 1000 + ack as u32, flags, data))
    };
    let (asked, end) = (1 + get.len(), 1 + head + 2800);
    say("TCP SYN", client(0, 0, SYN, &[]));
    say("TCP SYN, ACK", server(0, 1, SYN | ACK, &[]));
    say("TCP ACK", client(1, 2, ACK, &[]));
    say("HTTP GET", client(1, 2, PUSH_ACK, get));
    say("HTTP answer, full size", server(1, asked, ACK, first));
    say("HTTP answer, end", server(1 + first.len(), asked, PUSH_ACK, second));
    say("TCP ACK of the data", client(asked, end + 1, ACK, &[]));
    say("TCP FIN", server(end, asked, FIN_ACK, &[]));
    say("TCP FIN back", client(asked, end + 2, FIN_ACK, &[]));
    say("TCP last ACK", server(end + 1, asked + 1, ACK, &[]));

    say("UDP, 512 bytes", there(UDP, &udp(40_003, 9, &[0x55; 512])));
    say("VLAN 42, UDP", tagged(42, there(UDP, &udp(40_004, 9, &[0x42; 120]))));
    say("VLAN 42, UDP, full size", tagged(42, back(UDP, &udp(9, 40_004, &[0x42; 1472]))));
    say("IPv6 neighbour solicitation", neighbour_solicitation());
    say("IPv6 UDP", ipv6(v6(10), v6(11), UDP, 64, &udp(40_005, 9, &[0x66; 200])));
    say("IPv6 TCP SYN", ipv6(v6(10), v6(11), TCP, 64, &tcp(40_006, 443, 1, 0, SYN, &[])));
    say("IPv6 ping", ipv6(v6(10), v6(11), ICMPV6, 64, &icmp_echo(128, 1000)));
    talk
}

/// Returns an address of 2001:db8::/32.
fn v6(last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
    address[15] = last;
    address
}

fn ethernet(destination: [u8; 6], source: [u8; 6], ether_type: u16, packet: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &ether_type.to_be_bytes(), packet].concat()
}

/// Pads short frames with zeros, as a NIC does.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(60), 0);
    frame
}

fn tagged(vlan: u16, mut frame: Vec<u8>) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    frame.splice(12..12, [0x81, 0x00, high, low]);
    frame
}

fn arp(operation: u8, mac: [u8; 6], ip: [u8; 4], to_mac: [u8; 6], to_ip: [u8; 4]) -> Vec<u8> {
    let fixed = [0, 1, 0x08, 0, 6, 4, 0, operation];
    let packet = [&fixed[..], &mac, &ip, &to_mac, &to_ip].concat();
    let destination = if operation == 1 { [0xff; 6] } else { to_mac };
    ethernet(destination, mac, 0x0806, &packet)
}

/// Returns destination and source Ethernet address for this direction.
fn macs(from_client: bool) -> ([u8; 6], [u8; 6]) {
    if from_client { (SERVER_MAC, CLIENT_MAC) } else { (CLIENT_MAC, SERVER_MAC) }
}

fn ipv4(from: [u8; 4], to: [u8; 4], kind: u8, payload: &[u8]) -> Vec<u8> {
    let bytes = (20 + payload.len()) as u16;
    let mut header = vec![0x45, 0];
    header.extend(bytes.to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, kind, 0, 0]);
    header.extend([from, to].concat());
    let check = fold(word_sum(&header));
    header[10..12].copy_from_slice(&check.to_be_bytes());

    let pseudo = if kind == ICMP { 0 } else { pseudo_sum(&from, &to, kind, payload.len()) };
    header.extend(checked(kind, payload, pseudo));
    let (destination, source) = macs(from == CLIENT);
    ethernet(destination, source, 0x0800, &header)
}

fn ipv6(from: [u8; 16], to: [u8; 16], kind: u8, hops: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([kind, hops]);
    packet.extend([from, to].concat());
    packet.extend(checked(kind, payload, pseudo_sum(&from, &to, kind, payload.len())));
    let (mut destination, source) = macs(from == v6(10));
    if to[0] == 0xff {
        destination = [0x33, 0x33, to[12], to[13], to[14], to[15]];
    }
    ethernet(destination, source, 0x86dd, &packet)
}

/// Returns the sum of the pseudo-header. RFC 9293 section 3.1 and RFC 8200 section 8.1 sum the same words.
fn pseudo_sum(from: &[u8], to: &[u8], kind: u8, bytes: usize) -> u64 {
    word_sum(from) + word_sum(to) + u64::from(kind) + bytes as u64
}

/// Returns the payload with its checksum filled in.
fn checked(kind: u8, payload: &[u8], pseudo: u64) -> Vec<u8> {
    let at = match kind {
        UDP => 6,
        TCP => 16,
        _ => 2, // ICMP and ICMPv6
    };
    let mut payload = payload.to_vec();
    let check = match fold(word_sum(&payload) + pseudo) {
        0 if kind == UDP => 0xffff, // 0 means "no checksum"
        check => check,
    };
    payload[at..at + 2].copy_from_slice(&check.to_be_bytes());
    payload
}

fn icmp_echo(kind: u8, data: usize) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0x57, 0x45, 0, 1];
    message.extend((0..data).map(|i| i as u8));
    message
}

fn neighbour_solicitation() -> Vec<u8> {
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(v6(11));
    message.extend([1, 1]); // option: source link-layer address
    message.extend(CLIENT_MAC);
    let solicited = [0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 11];
    ipv6(v6(10), solicited, ICMPV6, 255, &message)
}

fn udp(from: u16, to: u16, data: &[u8]) -> Vec<u8> {
    let bytes = (8 + data.len()) as u16;
    let header = [from, to, bytes, 0].map(u16::to_be_bytes).concat();
    [&header[..], data].concat()
}

fn tcp(from: u16, to: u16, seq: u32, ack: u32, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut segment = [from, to].map(u16::to_be_bytes).concat();
    segment.extend([seq, ack].map(u32::to_be_bytes).concat());
    segment.extend([0x50, flags, 0xfa, 0xf0, 0, 0, 0, 0]);
    segment.extend(data);
    segment
}

/// Returns a query for the address of weir.example, or its answer.
fn dns(answer: bool) -> Vec<u8> {
    let mut message =
        vec![0x57, 0x45, if answer { 0x81 } else { 0x01 }, if answer { 0x80 } else { 0 }];
    message.extend([0, 1, 0, u8::from(answer), 0, 0, 0, 0]);
    message.extend(b"\x04weir\x07example\x00\x00\x01\x00\x01");
    if answer {
        // The answer: the name as a pointer, type A, class IN, 300 s, 4 bytes.
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4]);
        message.extend(SERVER);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_is_the_same_each_time_and_has_all_kinds() {
        let talk = frames();
        assert_eq!(talk, frames());
        assert!(talk.iter().all(|frame| (60..=1518).contains(&frame.bytes.len())));
        for ether_type in [[0x08, 0x06], [0x08, 0x00], [0x81, 0x00], [0x86, 0xdd]] {
            assert!(talk.iter().any(|frame| frame.bytes[12..14] == ether_type));
        }
        assert_eq!(talk.iter().filter(|frame| frame.bytes.len() >= 1514).count(), 2);
    }

    #[test]
    fn ip_checksums_hold() {
        for frame in frames().iter().filter(|frame| frame.bytes[12..14] == [0x08, 0x00]) {
            assert_eq!(fold(word_sum(&frame.bytes[14..34])), 0, "{}", frame.what);
        }
    }
}
