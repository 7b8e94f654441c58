//! The template of generated frames: layout, flows, checksum.
//!
//! ```text
//!  0  destination, source MAC; EtherType 0x0800
//! 14  IPv4: no options, TTL 64, DF, id 0; source from the flow, destination 192.0.2.1; right checksum
//! 34  UDP: source port from the flow, destination port 9 (discard); checksum 0, which is "none"
//! 42  frame number, u64 big-endian                                                 NUMBER_AT
//! 50  CLOCK_TAI when the frame was made, ns, u64 big-endian, if asked for; else 0   STAMP_AT
//! 58  zeros
//! ```
//! `bpf/wire_generator.bpf.c` makes the same frames in the kernel. Addresses are those reserved for
//! tests and documentation (RFC 2544, RFC 5737), so that frames that leave a test network are
//! recognised.
//!
//! Frames with addresses of the user's choice have the layout of [`weir_frame::datagram`].

use weir_frame::checksum::{fold, word_sum};
use weir_frame::datagram::{self, Addressing, Datagrams, Form};
pub use weir_frame::datagram::{DESTINATION_MAC, DESTINATION_PORT, SOURCE_MAC};

/// Offset of the frame number: u64, big-endian.
pub const NUMBER_AT: usize = 42;
/// Offset of the time stamp, if requested: u64, big-endian, CLOCK_TAI in ns.
pub const STAMP_AT: usize = 50;
/// The IPv4 destination of frames of [`Template::new`]: TEST-NET-1.
pub const DESTINATION: [u8; 4] = datagram::DESTINATION.octets();

const CHECK_AT: usize = 24;
const SADDR_AT: usize = 26;
const SPORT_AT: usize = 34;

/// Returns the source address and port of a frame number.
///
/// A `flow_count` of 0 gives each of 2^32 frames its own flow; after that, flows repeat.
pub fn flow_of(number: u64, flow_count: u64) -> (u32, u16) {
    datagram::flow_of(flow_number(number, flow_count))
}

/// Returns the flow to which a frame number belongs.
fn flow_number(number: u64, flow_count: u64) -> u32 {
    let flow = if flow_count == 0 { number } else { number % flow_count };
    flow as u32
}

/// Generates the frames of one size.
#[derive(Debug, Clone)]
pub struct Template {
    frame: Vec<u8>,
    flow_count: u64,
    check_base: u32,
    /// Set for frames to addresses of the user's choice.
    datagrams: Option<Datagrams>,
}

impl Template {
    /// Creates a template for frames of `frame_bytes`, without FCS: at least 60, which have room for number and stamp,
    /// and at most 65535 + 14.
    pub fn new(
        frame_bytes: usize,
        flow_count: u64,
        source: [u8; 6],
        destination: [u8; 6],
    ) -> Template {
        assert!((60..=65535 + 14).contains(&frame_bytes), "checked against the link before");
        let mut frame = vec![0; frame_bytes];
        let ip_bytes = (frame_bytes - 14) as u16;
        frame[..6].copy_from_slice(&destination);
        frame[6..12].copy_from_slice(&source);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
        frame[20..22].copy_from_slice(&[0x40, 0x00]); // don't fragment
        frame[22..24].copy_from_slice(&[64, 17]); // TTL, UDP
        frame[30..34].copy_from_slice(&DESTINATION);
        frame[36..38].copy_from_slice(&DESTINATION_PORT.to_be_bytes());
        frame[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
        // Source address and checksum are still zero, so they add nothing.
        let check_base = word_sum(&frame[14..34]) as u32;
        Template { frame, flow_count, check_base, datagrams: None }
    }

    /// Creates a template for frames of `frame_bytes` to addresses of the user's choice.
    pub fn addressed(addressing: &Addressing, frame_bytes: usize, flow_count: u64) -> Template {
        let datagrams = Datagrams::new(addressing, frame_bytes);
        let frame = datagrams.blank().to_vec();
        Template { frame, flow_count, check_base: 0, datagrams: Some(datagrams) }
    }

    /// Returns the whole frame `number`, without a stamp.
    pub fn frame(&self, number: u64) -> Vec<u8> {
        let mut frame = self.frame.clone();
        self.number(&mut frame, number);
        frame
    }

    /// Turns a frame of this template into frame `number`. Fields that are the same in all frames are not written.
    pub(crate) fn number(&self, frame: &mut [u8], number: u64) {
        self.stamp(frame, number, 0);
    }

    /// Turns a frame of this template into frame `number` with this stamp. A stamp of 0 is not written.
    pub(super) fn stamp(&self, frame: &mut [u8], number: u64, stamp: u64) {
        if let Some(datagrams) = &self.datagrams {
            datagrams.write(frame, flow_number(number, self.flow_count), number, stamp);
            return;
        }
        if stamp != 0 {
            frame[STAMP_AT..STAMP_AT + 8].copy_from_slice(&stamp.to_be_bytes());
        }
        let (saddr, sport) = flow_of(number, self.flow_count);
        let check = fold(u64::from(self.check_base + (saddr >> 16) + (saddr & 0xffff)));
        frame[CHECK_AT..][..2].copy_from_slice(&check.to_be_bytes());
        frame[SADDR_AT..][..4].copy_from_slice(&saddr.to_be_bytes());
        frame[SPORT_AT..][..2].copy_from_slice(&sport.to_be_bytes());
        frame[NUMBER_AT..][..8].copy_from_slice(&number.to_be_bytes());
    }

    /// Turns a frame of another size into one of this template, except for the fields that
    /// [`Template::number`] writes. Generated payloads are zeros, so only the headers and the
    /// length differ. Payloads of the user are copied.
    pub(super) fn shape(&self, frame: &mut Vec<u8>) {
        if frame.len() != self.frame.len() {
            if self.datagrams.is_some() {
                frame.clear();
                frame.extend_from_slice(&self.frame);
                return;
            }
            frame.resize(self.frame.len(), 0);
            frame[..NUMBER_AT].copy_from_slice(&self.frame[..NUMBER_AT]);
        }
    }

    /// Returns the frame from which all others are made. Its varying fields are zero.
    pub(super) fn blank(&self) -> &[u8] {
        &self.frame
    }

    /// Returns the offsets in frames to addresses of the user's choice.
    pub(super) fn form(&self) -> Option<Form> {
        self.datagrams.as_ref().map(Datagrams::form)
    }

    /// Returns the number of flows; 0 means 2^32.
    pub(super) fn flow_count(&self) -> u64 {
        self.flow_count
    }

    /// Returns the sum of the IP header's words without source address and checksum.
    pub(super) fn check_base(&self) -> u32 {
        self.check_base
    }
}

/// Returns the frame number; `None` if the headers are not those of [`Template::new`]. Frames of the user's choice are
/// not told apart: with the default destination and port, their payload is taken for a number.
pub fn number_of(frame: &[u8]) -> Option<u64> {
    let ours = frame.get(12..15)? == [0x08, 0x00, 0x45]
        && frame.get(23)? == &17
        && frame.get(30..34)? == DESTINATION
        && frame.get(36..38)? == DESTINATION_PORT.to_be_bytes();
    let number = frame.get(NUMBER_AT..NUMBER_AT + 8)?.try_into().ok()?;
    ours.then(|| u64::from_be_bytes(number))
}

/// Returns the stamp, CLOCK_TAI in ns; `None` if there is none, or as in [`number_of`].
pub fn stamp_of(frame: &[u8]) -> Option<u64> {
    number_of(frame)?;
    let stamp = frame.get(STAMP_AT..STAMP_AT + 8)?.try_into().ok()?;
    Some(u64::from_be_bytes(stamp)).filter(|&stamp| stamp != 0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_million_frames_have_a_million_flows_wherever_they_start() {
        for first in [0, u64::from(u32::MAX) - 500_000, 1 << 40] {
            let flows: HashSet<_> = (first..first + 1_000_000).map(|n| flow_of(n, 0)).collect();
            assert_eq!(flows.len(), 1_000_000);
            assert!(
                flows.iter().all(|&(saddr, port)| saddr >> 17 == 0xc612 >> 1 && port >= 0x8000)
            );
        }
    }

    #[test]
    fn n_flows_are_n_flows() {
        for count in [1, 2, 1000] {
            let flows: HashSet<_> = (0..10_000).map(|n| flow_of(n, count)).collect();
            assert_eq!(flows.len() as u64, count);
        }
    }

    #[test]
    fn checksums_hold_for_every_size_and_number() {
        for bytes in [60, 61, 124, 1514, 9014, 65549] {
            let template = Template::new(bytes, 0, SOURCE_MAC, DESTINATION_MAC);
            for number in [0, 1, 12345, u64::from(u32::MAX), u64::MAX] {
                let frame = template.frame(number);
                // A header that contains a correct checksum sums to zero. Source: RFC 1071.
                assert_eq!(fold(word_sum(&frame[14..34])), 0, "{bytes} {number}");
                assert_eq!(frame.len(), bytes);
                assert_eq!(usize::from(u16::from_be_bytes([frame[16], frame[17]])), bytes - 14);
                assert_eq!(usize::from(u16::from_be_bytes([frame[38], frame[39]])), bytes - 34);
                assert_eq!(number_of(&frame), Some(number));
            }
        }
    }

    #[test]
    fn a_frame_of_another_size_becomes_one_of_this() {
        let of = |bytes| Template::new(bytes, 3, SOURCE_MAC, DESTINATION_MAC);
        let mut frame = of(1514).frame(9);
        for bytes in [60, 590, 60, 1514, 1514] {
            let template = of(bytes);
            template.shape(&mut frame);
            template.number(&mut frame, 10);
            assert_eq!(frame, template.frame(10), "{bytes}");
        }
    }

    #[test]
    fn a_stamp_is_read_where_there_is_one() {
        let mut frame = Template::new(60, 1, SOURCE_MAC, DESTINATION_MAC).frame(7);
        assert_eq!(stamp_of(&frame), None);
        frame[STAMP_AT..STAMP_AT + 8].copy_from_slice(&1234u64.to_be_bytes());
        assert_eq!(stamp_of(&frame), Some(1234));
        assert_eq!(stamp_of(&frame[..STAMP_AT + 7]), None);
        frame[37] ^= 1;
        assert_eq!(stamp_of(&frame), None);
    }

    #[test]
    fn other_frames_have_no_number() {
        let template = Template::new(60, 1, SOURCE_MAC, DESTINATION_MAC);
        let frame = template.frame(7);
        for at in [12, 14, 23, 30, 37] {
            let mut other = frame.clone();
            other[at] ^= 0xff;
            assert_eq!(number_of(&other), None, "{at}");
        }
        assert_eq!((0..50).find_map(|end| number_of(&frame[..end])), None);
    }
}
