//! The frames themselves: the same as `weir gen IFACE` sends (`weir-lab`, `generator::template`), to
//! the byte, so that whatever checks those checks these.
//!
//! ```text
//!  0  destination, source MAC; EtherType 0x0800
//! 14  IPv4: no options, TTL 64, DF, id 0; source from the flow, destination 192.0.2.1; right checksum
//! 34  UDP: source port from the flow, destination port 9 (discard); checksum 0, which is "none"
//! 42  frame number, u64 big-endian
//! 50  zeros
//! ```

use super::spec::Flows;

/// Destination and source: locally administered, "WEIR" in the middle.
const MACS: [u8; 12] = *b"\x02\x57\x45\x49\x52\x02\x02\x57\x45\x49\x52\x01";
/// TEST-NET-1, RFC 5737.
const DESTINATION: [u8; 4] = [192, 0, 2, 1];
const DISCARD_PORT: u16 = 9;
const CHECK_AT: usize = 24;
const SADDR_AT: usize = 26;
const SPORT_AT: usize = 34;
const NUMBER_AT: usize = 42;

/// Makes some frames at a time.
///
/// All of them are numbered before the first is copied out: bytes that were just stored and are loaded
/// as part of a wider word wait for the store buffer, some 15 cycles each time.
pub(super) struct Maker {
    frames: Vec<u8>,
    frame_bytes: usize,
    flows: Flows,
    /// The flow of the next frame; with [`Flows::Multi`] that is its number.
    flow: u32,
    check_base: u32,
}

impl Maker {
    pub(super) fn new(frame_bytes: usize, flows: Flows, together: usize) -> Maker {
        let mut frame = vec![0; frame_bytes];
        let ip_bytes = (frame_bytes - 14) as u16;
        frame[..12].copy_from_slice(&MACS);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
        frame[20..24].copy_from_slice(&[0x40, 0x00, 64, 17]); // don't fragment, TTL, UDP
        frame[30..34].copy_from_slice(&DESTINATION);
        frame[36..38].copy_from_slice(&DISCARD_PORT.to_be_bytes());
        frame[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
        // Source address and checksum are still zero, so they add nothing.
        let words = frame[14..34].chunks_exact(2);
        let check_base = words.map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        let mut maker =
            Maker { frames: frame.repeat(together), frame_bytes, flows, flow: 0, check_base };
        // Where all frames are of one flow, that is written once.
        for frame in maker.frames.chunks_exact_mut(frame_bytes) {
            set_flow(frame, 0, check_base);
        }
        maker
    }

    /// Frames from `number` on, at most `frames_max` of them.
    #[inline]
    pub(super) fn make(&mut self, number: u64, frames_max: u64) -> std::slice::ChunksExact<'_, u8> {
        let together = self.frames.len() / self.frame_bytes;
        let count = frames_max.min(together as u64) as usize;
        let frames = &mut self.frames[..count * self.frame_bytes];
        for (frame, number) in frames.chunks_exact_mut(self.frame_bytes).zip(number..) {
            frame[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
            let next = match self.flows {
                Flows::Single => continue,
                Flows::Multi => self.flow.wrapping_add(1),
                Flows::N(flows) if self.flow + 1 == flows => 0,
                Flows::N(_) => self.flow + 1,
            };
            set_flow(frame, self.flow, self.check_base);
            self.flow = next;
        }
        frames.chunks_exact(self.frame_bytes)
    }
}

#[inline]
fn set_flow(frame: &mut [u8], flow: u32, check_base: u32) {
    let mixed = mix32(flow.wrapping_add(1));
    // 17 bits of 198.18.0.0/15, 15 bits of the ports from 32768 on: all 32 bits are in the 5-tuple.
    let (saddr, sport) = (0xc612_0000 | (mixed >> 15), 0x8000 | (mixed & 0x7fff) as u16);
    let sum = check_base + (saddr >> 16) + (saddr & 0xffff);
    let sum = (sum & 0xffff) + (sum >> 16);
    let check = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[CHECK_AT..CHECK_AT + 2].copy_from_slice(&check.to_be_bytes());
    frame[SADDR_AT..SADDR_AT + 4].copy_from_slice(&saddr.to_be_bytes());
    frame[SPORT_AT..SPORT_AT + 2].copy_from_slice(&sport.to_be_bytes());
}

/// A bijection of the 32-bit numbers that looks random to a hash.
///
/// Source: Appleby, MurmurHash3 (public domain), `fmix32`.
#[inline]
fn mix32(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::generator::template::{DESTINATION_MAC, SOURCE_MAC, Template};

    #[test]
    fn frames_are_those_of_the_wire_generator() {
        for (flows, flow_count) in [(Flows::Single, 1), (Flows::Multi, 0), (Flows::N(7), 7)] {
            for (bytes, together) in [(60, 64), (61, 64), (1514, 10), (9014, 1), (65549, 1)] {
                let template = Template::new(bytes, flow_count, SOURCE_MAC, DESTINATION_MAC);
                let mut maker = Maker::new(bytes, flows, together);
                let mut number = 0;
                for frames_max in [3, 100, 1, 5000] {
                    for frame in maker.make(number, frames_max) {
                        assert_eq!(frame, template.frame(number), "{flows:?} {bytes} {number}");
                        number += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn no_more_frames_are_made_than_asked_for() {
        let mut maker = Maker::new(60, Flows::Single, 64);
        assert_eq!(maker.make(0, 0).len(), 0);
        assert_eq!(maker.make(0, 63).len(), 63);
        assert_eq!(maker.make(63, u64::MAX).len(), 64);
    }
}
