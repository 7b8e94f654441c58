use etherparse::{NetHeaders, PacketBuilder, PacketHeaders, TransportHeader};
use proptest::prelude::*;

use super::*;

const ADDRESSES: ([u8; 6], [u8; 6]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

/// Parts of a super-frame.
#[derive(Clone, Debug)]
struct Whole {
    is_v6: bool,
    tags: usize,
    seq: u32,
    id: u16,
    options: bool,
    flags: u8,
    payload: Vec<u8>,
}

fn whole() -> impl Strategy<Value = Whole> {
    let bytes = prop::collection::vec(any::<u8>(), 3000..20_000);
    (any::<(bool, u32, u16, bool)>(), 0..3_usize, any::<u8>(), bytes).prop_map(
        |((is_v6, seq, id, options), tags, flags, payload)| Whole {
            is_v6,
            tags,
            seq,
            id,
            options,
            flags: flags & !SYN,
            payload,
        },
    )
}

impl Whole {
    fn frame(&self) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2(ADDRESSES.0, ADDRESSES.1);
        let builder = match self.is_v6 {
            true => builder.ipv6([0xfd; 16], [0xfc; 16], 64),
            false => builder.ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64),
        };
        let mut tcp = builder.tcp(443, 50_000, self.seq, 1000).ack(77);
        if self.options {
            tcp = tcp.options_raw(&[1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        }
        let mut frame = Vec::new();
        tcp.write(&mut frame, &self.payload).unwrap();
        let tcp_at = if self.is_v6 { 54 } else { 34 };
        frame[tcp_at + 13] = self.flags;
        // With checksum offload, the kernel leaves the checksum to the NIC. So this one is wrong.
        frame[tcp_at + 16..tcp_at + 18].fill(0xaa);
        if !self.is_v6 {
            frame[18..20].copy_from_slice(&self.id.to_be_bytes());
        }
        for tag in 0..self.tags {
            frame.splice(12..12, [0x81, 0, 0x20, tag as u8]);
        }
        frame
    }
}

fn segments_of(frame: &[u8], mtu: usize) -> Option<Vec<Vec<u8>>> {
    let Segmentation::Segments(mut segments) = Segmentation::of(frame, mtu) else { return None };
    let (mut all, mut out) = (Vec::new(), Vec::new());
    let count = segments.count();
    while segments.next_into(&mut out) {
        all.push(out.clone());
    }
    assert_eq!(all.len(), count);
    Some(all)
}

/// Parses the segment without its tags with an independent parser, and compares its checksums with those that this
/// parser computes. Returns the IPv4 ID, the TCP header and the payload.
fn read(segment: &[u8], tags: usize) -> (Option<u16>, etherparse::TcpHeader, Vec<u8>) {
    let mut plain = segment.to_vec();
    plain.drain(12..12 + tags * 4);
    let headers = PacketHeaders::from_ethernet_slice(&plain).unwrap();
    let payload = headers.payload.slice().to_vec();
    let Some(TransportHeader::Tcp(tcp)) = headers.transport else { panic!("no TCP") };
    let (id, check) = match headers.net.unwrap() {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            (Some(ip.identification), tcp.calc_checksum_ipv4(&ip, &payload).unwrap())
        }
        NetHeaders::Ipv6(ip, _) => (None, tcp.calc_checksum_ipv6(&ip, &payload).unwrap()),
        other => panic!("{other:?}"),
    };
    assert_eq!(tcp.checksum, check);
    (id, tcp, payload)
}

proptest! {
    #[test]
    fn segments_joined_again_are_the_payload(whole in whole(), mtu in 576..2000_usize) {
        let all = segments_of(&whole.frame(), mtu).expect("TCP is segmented");
        let (mut joined, last) = (Vec::new(), all.len() - 1);
        for (number, segment) in all.iter().enumerate() {
            let packet_bytes = segment.len() - 14 - whole.tags * 4;
            prop_assert!(packet_bytes <= mtu);
            prop_assert!(number == last || packet_bytes == mtu, "only the last is short");
            let (id, tcp, payload) = read(segment, whole.tags);
            prop_assert_eq!(tcp.sequence_number, whole.seq.wrapping_add(joined.len() as u32));
            prop_assert_eq!(tcp.fin, whole.flags & FIN != 0 && number == last);
            prop_assert_eq!(tcp.psh, whole.flags & PSH != 0 && number == last);
            prop_assert_eq!(tcp.cwr, whole.flags & CWR != 0 && number == 0);
            prop_assert_eq!(tcp.ece, whole.flags & 0x40 != 0);
            if let Some(id) = id {
                prop_assert_eq!(id, whole.id.wrapping_add(number as u16));
            }
            joined.extend(payload);
        }
        prop_assert_eq!(joined, whole.payload);
    }

    #[test]
    fn any_bytes_are_taken_apart_or_left(mut frame in prop::collection::vec(any::<u8>(), 0..400), mtu in 0..200_usize) {
        segments_of(&frame, mtu);
        // Most random bytes are no IP at all.
        if frame.len() > 24 {
            for (ether_type, version, at) in [([8, 0], 0x45, 23), ([0x86, 0xdd], 0x60, 20)] {
                frame[12..14].copy_from_slice(&ether_type);
                (frame[14], frame[at]) = (version, protocol::TCP);
                segments_of(&frame, mtu);
            }
        }
    }
}

fn example() -> Whole {
    let payload = (0..5000).map(|at| at as u8).collect();
    Whole { is_v6: true, tags: 1, seq: 1, id: 0, options: true, flags: PSH, payload }
}

#[test]
fn what_fits_is_left_alone_and_what_is_no_plain_tcp_is_impossible() {
    let frame = example().frame();
    assert!(matches!(Segmentation::of(&frame, frame.len()), Segmentation::Fits));
    let syn = Whole { flags: SYN, ..example() }.frame();
    assert!(matches!(Segmentation::of(&syn, 1500), Segmentation::Impossible));
    let mut udp = example().frame();
    udp[18 + 6] = protocol::UDP;
    assert!(matches!(Segmentation::of(&udp, 1500), Segmentation::Impossible));
    let cut = &frame[..4000];
    assert!(matches!(Segmentation::of(cut, 1500), Segmentation::Impossible));
    let fragment = {
        let mut frame = Whole { is_v6: false, tags: 0, ..example() }.frame();
        frame[20] = 0x20;
        frame
    };
    assert!(matches!(Segmentation::of(&fragment, 1500), Segmentation::Impossible));
}

#[test]
fn headers_of_jumbograms_are_left_out() {
    let plain = Whole { tags: 0, ..example() };
    let mut jumbo = plain.frame();
    (jumbo[4 + 14], jumbo[5 + 14], jumbo[6 + 14]) = (0, 0, protocol::HOP_BY_HOP);
    jumbo.splice(54..54, [protocol::TCP, 0, 0xc2, 4, 0, 1, 0x86, 0xa0]);
    let all = segments_of(&jumbo, 1500).expect("as Linux makes them");
    assert_eq!(all, segments_of(&plain.frame(), 1500).unwrap());
    let joined: Vec<u8> = all.iter().flat_map(|segment| read(segment, 0).2).collect();
    assert_eq!(joined, plain.payload);
}

#[test]
fn a_length_of_0_goes_to_the_end_of_the_frame() {
    let plain = Whole { is_v6: false, ..example() };
    let mut big = plain.frame();
    big[18 + 2..18 + 4].fill(0);
    assert_eq!(segments_of(&big, 1500), segments_of(&plain.frame(), 1500));
}
