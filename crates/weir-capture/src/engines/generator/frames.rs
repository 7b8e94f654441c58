//! Makes the frames. They are byte for byte the frames that `weir gen IFACE` sends (`weir-lab`, `generator::template`),
//! so that the same checks work for both.
//!
//! ```text
//!  0  destination, source MAC; EtherType 0x0800
//! 14  IPv4: no options, TTL 64, DF, id 0; source from the flow, destination 192.0.2.1; valid checksum
//! 34  UDP: source port from the flow, destination port 9 (discard); checksum 0, which means none
//! 42  frame number, u64 big-endian
//! 50  zeros
//! ```

use weir_frame::checksum::{fold, word_sum};
use weir_frame::datagram::{
    DESTINATION, DESTINATION_MAC, DESTINATION_PORT, Datagrams, SOURCE_MAC, flow_of,
};

use super::spec::{Flows, GenSpec};

const CHECK_AT: usize = 24;
const SADDR_AT: usize = 26;
const SPORT_AT: usize = 34;
const NUMBER_AT: usize = 42;

/// Makes several frames at a time.
///
/// All of them are numbered before the first is copied: the processor cannot forward bytes that were just stored to a
/// wider load, so a copy right after the numbering would wait about 15 cycles each time.
pub(super) struct Maker {
    frames: Vec<u8>,
    frame_bytes: usize,
    flows: Flows,
    /// The flow of the next frame; with [`Flows::Multi`], the number of the frame.
    flow: u32,
    check_base: u32,
    /// Writes frames with addresses that the user has set; `None`: the default addresses.
    datagrams: Option<Datagrams>,
}

impl Maker {
    /// Creates a maker of `together` frames at a time. The spec must have been checked.
    pub(super) fn new(spec: &GenSpec, together: usize) -> Maker {
        let (frame_bytes, flows) = (spec.frame_bytes(), spec.flows);
        if let Some(addressing) = spec.addresses.addressing() {
            let datagrams = Datagrams::new(&addressing, frame_bytes);
            let frames = datagrams.blank().repeat(together);
            let datagrams = Some(datagrams);
            return Maker { frames, frame_bytes, flows, flow: 0, check_base: 0, datagrams };
        }
        let mut frame = vec![0; frame_bytes];
        let ip_bytes = (frame_bytes - 14) as u16;
        frame[..6].copy_from_slice(&DESTINATION_MAC);
        frame[6..12].copy_from_slice(&SOURCE_MAC);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
        frame[20..24].copy_from_slice(&[0x40, 0x00, 64, 17]); // DF (don't fragment), fragment offset, TTL, UDP
        frame[30..34].copy_from_slice(&DESTINATION.octets());
        frame[36..38].copy_from_slice(&DESTINATION_PORT.to_be_bytes());
        frame[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
        // Source address and checksum are still zero, so they add nothing.
        let check_base = word_sum(&frame[14..34]) as u32;
        let (frames, datagrams) = (frame.repeat(together), None);
        let mut maker = Maker { frames, frame_bytes, flows, flow: 0, check_base, datagrams };
        // If all frames belong to one flow, its fields are written only here.
        for frame in maker.frames.chunks_exact_mut(frame_bytes) {
            set_flow(frame, 0, check_base);
        }
        maker
    }

    /// Returns the frames from `number` on, at most `frames_max`.
    #[inline]
    pub(super) fn make(&mut self, number: u64, frames_max: u64) -> std::slice::ChunksExact<'_, u8> {
        let together = self.frames.len() / self.frame_bytes;
        let count = frames_max.min(together as u64) as usize;
        let frames = &mut self.frames[..count * self.frame_bytes];
        let numbered = frames.chunks_exact_mut(self.frame_bytes).zip(number..);
        if let Some(datagrams) = &self.datagrams {
            for (frame, number) in numbered {
                datagrams.write(frame, self.flow, number, 0);
                self.flow = self.flows.after(self.flow);
            }
            return frames.chunks_exact(self.frame_bytes);
        }
        for (frame, number) in numbered {
            frame[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
            if self.flows != Flows::Single {
                set_flow(frame, self.flow, self.check_base);
                self.flow = self.flows.after(self.flow);
            }
        }
        frames.chunks_exact(self.frame_bytes)
    }
}

#[inline]
fn set_flow(frame: &mut [u8], flow: u32, check_base: u32) {
    let (saddr, sport) = flow_of(flow);
    let check = fold(u64::from(check_base + (saddr >> 16) + (saddr & 0xffff)));
    frame[CHECK_AT..CHECK_AT + 2].copy_from_slice(&check.to_be_bytes());
    frame[SADDR_AT..SADDR_AT + 4].copy_from_slice(&saddr.to_be_bytes());
    frame[SPORT_AT..SPORT_AT + 2].copy_from_slice(&sport.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_lab::generator::template::Template;

    fn spec(frame_bytes: usize, flows: Flows) -> GenSpec {
        GenSpec { size_on_wire: frame_bytes as u32 + 4, flows, ..GenSpec::default() }
    }

    #[test]
    fn frames_are_those_of_the_wire_generator() {
        for (flows, flow_count) in [(Flows::Single, 1), (Flows::Multi, 0), (Flows::N(7), 7)] {
            for (bytes, together) in [(60, 64), (61, 64), (1514, 10), (9014, 1), (65549, 1)] {
                let template = Template::new(bytes, flow_count, SOURCE_MAC, DESTINATION_MAC);
                are_those_of(&template, Maker::new(&spec(bytes, flows), together));
            }
        }
    }

    #[test]
    fn frames_with_addresses_are_those_of_the_wire_generator() {
        for (text, flow_count) in [
            ("src-port=7,flows=1000", 1000),
            ("dst-ip=10.0.0.7,flows=multi", 0),
            ("dst-ip=2001:db8::7,flows=7,vlan=5,42,size=100", 7),
            ("src-ip=10.0.0.1,src-port=1,dst-mac=02:00:00:00:00:0b", 1),
        ] {
            let spec: GenSpec = text.parse().expect(text);
            let addressing = spec.addresses.addressing().expect("addresses");
            let template = Template::addressed(&addressing, spec.frame_bytes(), flow_count);
            are_those_of(&template, Maker::new(&spec, 64));
        }
    }

    fn are_those_of(template: &Template, mut maker: Maker) {
        let mut number = 0;
        for frames_max in [3, 100, 1, 5000] {
            for frame in maker.make(number, frames_max) {
                assert_eq!(frame, template.frame(number), "{number}");
                number += 1;
            }
        }
    }

    #[test]
    fn no_more_frames_are_made_than_asked_for() {
        let mut maker = Maker::new(&spec(60, Flows::Single), 64);
        assert_eq!(maker.make(0, 0).len(), 0);
        assert_eq!(maker.make(0, 63).len(), 63);
        assert_eq!(maker.make(63, u64::MAX).len(), 64);
    }
}
