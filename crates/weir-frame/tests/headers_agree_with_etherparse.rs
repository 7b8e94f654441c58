//! `FrameView` against etherparse, and against the headers that the generator put into the frame.
//!
//! Every generated frame is compared at every length from 0 to whole. Where the two parsers differ
//! on purpose, the reason stands beside the check.

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use proptest::prelude::*;
use std::net::IpAddr;
use weir_frame::flow::FlowKey;
use weir_frame::headers::{Addresses, Ending, Fragment, FrameView, Layer, Upper, protocol};

/// A frame to build. All its length fields are correct; truncation and mutation make them wrong.
#[derive(Clone, Debug)]
struct Spec {
    vlans: Vec<(u16, u16)>,
    ip: IpSpec,
    protocol: u8,
    upper: [u8; 24],
    padding_bytes: usize,
}

#[derive(Clone, Debug)]
enum IpSpec {
    V4 { addresses: [[u8; 4]; 2], option_words: u8, fragment_word: u16, ah: bool },
    V6 { addresses: [[u8; 16]; 2], hop_by_hop: bool, extensions: Vec<(u8, u8)>, fragment_word: u16 },
}

/// Returns the frame, and the offset of the layer above IP.
fn build(spec: &Spec) -> (Vec<u8>, usize) {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    for (tpid, tci) in &spec.vlans {
        frame.extend(tpid.to_be_bytes());
        frame.extend(tci.to_be_bytes());
    }
    let upper_at = match &spec.ip {
        IpSpec::V4 { addresses, option_words, fragment_word, ah } => {
            frame.extend([8, 0]);
            let options = vec![1; usize::from(*option_words) * 4]; // no-operation
            let ah_bytes = if *ah { 24 } else { 0 };
            let total = 20 + options.len() + ah_bytes + spec.upper.len();
            frame.extend([0x45 + option_words, 0]);
            frame.extend((total as u16).to_be_bytes());
            frame.extend([0, 1]);
            frame.extend(fragment_word.to_be_bytes());
            frame.extend([64, if *ah { protocol::AH } else { spec.protocol }, 0, 0]);
            frame.extend(addresses.concat());
            frame.extend(options);
            if *ah {
                extension(&mut frame, protocol::AH, 4, spec.protocol, 0);
            }
            frame.len()
        }
        IpSpec::V6 { addresses, hop_by_hop, extensions, fragment_word } => {
            frame.extend([0x86, 0xdd]);
            let mut chain = Vec::new();
            if *hop_by_hop {
                chain.push((protocol::HOP_BY_HOP, 0));
            }
            chain.extend(extensions);
            let mut body = Vec::new();
            for (i, (kind, units)) in chain.iter().enumerate() {
                let next = chain.get(i + 1).map_or(spec.protocol, |(next, _)| *next);
                extension(&mut body, *kind, *units, next, *fragment_word);
            }
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(((body.len() + spec.upper.len()) as u16).to_be_bytes());
            frame.extend([chain.first().map_or(spec.protocol, |(first, _)| *first), 64]);
            frame.extend(addresses.concat());
            frame.extend(body);
            frame.len()
        }
    };
    frame.extend(spec.upper);
    frame.extend(vec![0xee; spec.padding_bytes]);
    (frame, upper_at)
}

fn extension(out: &mut Vec<u8>, kind: u8, units: u8, next: u8, fragment_word: u16) {
    let start = out.len();
    match kind {
        protocol::FRAGMENT => {
            out.extend([next, 0]);
            out.extend(fragment_word.to_be_bytes());
            out.resize(start + 8, 9);
        }
        protocol::AH => {
            out.extend([next, 4]);
            out.resize(start + 24, 0);
        }
        _ => {
            out.extend([next, units]);
            out.resize(start + (usize::from(units) + 1) * 8, 0);
        }
    }
}

fn specs() -> impl Strategy<Value = Spec> {
    let tag = (proptest::sample::select(vec![0x8100u16, 0x88a8, 0x9100]), any::<u16>());
    let protocol = proptest::sample::select(vec![6u8, 17, 132, 136, 33, 1, 58, 2, 50, 47, 59, 89]);
    let v4_word = prop_oneof![4 => Just(0x4000u16), 1 => Just(0x2000), 2 => any::<u16>()];
    let v4 = (any::<[[u8; 4]; 2]>(), 0u8..=10, v4_word, any::<bool>()).prop_map(
        |(addresses, option_words, fragment_word, ah)| IpSpec::V4 {
            addresses,
            option_words,
            fragment_word,
            ah,
        },
    );
    let kind = proptest::sample::select(vec![
        protocol::ROUTING,
        protocol::FRAGMENT,
        protocol::DESTINATION_OPTIONS,
        protocol::AH,
    ]);
    let v6_word = prop_oneof![2 => Just(0u16), 1 => Just(1), 1 => any::<u16>()];
    let extensions = proptest::collection::vec((kind, 0u8..4), 0..5);
    let v6 = (any::<[[u8; 16]; 2]>(), any::<bool>(), extensions, v6_word).prop_map(
        |(addresses, hop_by_hop, extensions, fragment_word)| IpSpec::V6 {
            addresses,
            hop_by_hop,
            extensions,
            fragment_word,
        },
    );
    let vlans = proptest::collection::vec(tag, 0..=3);
    (vlans, prop_oneof![v4, v6], protocol, any::<[u8; 24]>(), 0usize..20).prop_map(
        |(vlans, ip, protocol, mut upper, padding_bytes)| {
            upper[12] = 0x50; // a TCP header without options, or etherparse refuses it
            Spec { vlans, ip, protocol, upper, padding_bytes }
        },
    )
}

fn has_ports(number: u8) -> bool {
    matches!(number, 6 | 17 | 132 | 136 | 33)
}

fn addresses_of(pair: Addresses) -> (IpAddr, IpAddr) {
    match pair {
        Addresses::V4 { src, dst } => (src.into(), dst.into()),
        Addresses::V6 { src, dst } => (src.into(), dst.into()),
    }
}

/// Checks that the parsed frame has all fields that were put into it.
fn matches_spec(spec: &Spec, frame: &[u8], upper_at: usize) {
    let view = FrameView::parse(frame);
    let tags: Vec<_> = view.vlans().iter().map(|t| (t.tpid, t.tci)).collect();
    assert_eq!(tags, spec.vlans);
    assert_eq!(view.ending(), Ending::Whole);
    let ip = view.ip().expect("a whole frame has its IP header");
    if let Fragment::Later { .. } = ip.fragment {
        assert_eq!(ip.upper, Upper::Unknown);
        return;
    }
    assert_eq!((ip.protocol, ip.upper_at as usize), (spec.protocol, upper_at));
    assert_eq!(view.upper(), spec.upper);
    let [a, b, c, d, ..] = spec.upper;
    let wanted = match spec.protocol {
        protocol::ICMP | protocol::ICMPV6 => Upper::Icmp { kind: a, code: b },
        p if has_ports(p) => {
            Upper::Ports { src: u16::from_be_bytes([a, b]), dst: u16::from_be_bytes([c, d]) }
        }
        _ => Upper::Unknown,
    };
    assert_eq!(ip.upper, wanted);
    let key = FlowKey::of(&view).unwrap();
    assert_eq!(key.symmetric_hash(), key.reversed().symmetric_hash());
}

/// Checks that both parsers agree on `frame`, which may be truncated. `sound`: its length fields are as built.
fn parsers_agree(frame: &[u8], sound: bool) {
    let view = FrameView::parse(frame);
    let Ok(theirs) = LaxSlicedPacket::from_ethernet(frame) else {
        assert_eq!(view.ending(), Ending::CutOff(Layer::Ethernet));
        return;
    };
    let their_tags = theirs.vlan_ids();
    let ours: Vec<_> = view.vlans().iter().map(|t| t.id()).collect();
    let their_tags: Vec<_> = their_tags.iter().map(|id| id.value()).collect();
    assert_eq!(ours[..their_tags.len().min(ours.len())], their_tags[..]);
    if ours.len() != their_tags.len() {
        // If a tag's TCI is there but its ethertype is cut off, we report the tag. Of more than three tags,
        // etherparse reports three.
        assert!(view.ending() == Ending::CutOff(Layer::Vlan) || their_tags.len() == 3);
        if ours.len() > 3 {
            return;
        }
    }
    let (their_ends, their_protocol) = match &theirs.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let ends = (header.source_addr().into(), header.destination_addr().into());
            ((ends), ip.payload().ip_number.0)
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let ends = (header.source_addr().into(), header.destination_addr().into());
            ((ends), ip.payload().ip_number.0)
        }
        _ => {
            if let Some(ip) = view.ip() {
                // The IPv4 options are cut off. We report the addresses, because they come before the options.
                assert!(matches!(ip.addresses, Addresses::V4 { .. }));
                assert_eq!(ip.upper, Upper::Unknown);
                if sound {
                    assert_eq!(view.ending(), Ending::CutOff(Layer::Ip));
                }
            }
            return;
        }
    };
    let Some(ip) = view.ip() else {
        // etherparse takes the version from the packet, whatever the ethertype says.
        assert!(!sound && view.ending() == Ending::Malformed(Layer::Ip));
        return;
    };
    assert_eq!(addresses_of(ip.addresses), their_ends);
    if let Fragment::Later { .. } = ip.fragment {
        // etherparse reads on through the payload of a later fragment as if headers stood there.
        return;
    }
    if !sound {
        // etherparse takes the frame's length where IPv4's total length is below the header; it
        // refuses a hop-by-hop header that is not the first; it reads one AH in IPv4, we read any
        // number; and it has no limit on extension headers.
        let differs = matches!(
            view.ending(),
            Ending::Malformed(Layer::Ip) | Ending::TooDeep(_) | Ending::Malformed(Layer::Extension)
        );
        if differs || their_protocol == protocol::HOP_BY_HOP || their_protocol == protocol::AH {
            return;
        }
    }
    assert_eq!(ip.protocol, their_protocol);
    let their_ports = match &theirs.transport {
        Some(TransportSlice::Tcp(tcp)) => Some((tcp.source_port(), tcp.destination_port())),
        Some(TransportSlice::Udp(udp)) => Some((udp.source_port(), udp.destination_port())),
        _ => None,
    };
    let our_ports = match ip.upper {
        Upper::Ports { src, dst } => Some((src, dst)),
        _ => None,
    };
    if our_ports != their_ports {
        // We report ports in more cases: in a first fragment, in a header of which only 4 bytes are there, in a TCP
        // header with a bad data offset, and for SCTP, UDP-Lite and DCCP. We never report other ports.
        let short = view.upper().len() < 20 || !sound;
        let other = !matches!(ip.protocol, protocol::TCP | protocol::UDP);
        assert_eq!(their_ports, None);
        assert!(ip.fragment == Fragment::First || short || other, "{ip:?}");
    }
    let their_icmp = match &theirs.transport {
        Some(TransportSlice::Icmpv4(icmp)) => Some((icmp.type_u8(), icmp.code_u8())),
        Some(TransportSlice::Icmpv6(icmp)) => Some((icmp.type_u8(), icmp.code_u8())),
        _ => None,
    };
    if let Some((kind, code)) = their_icmp {
        assert_eq!(ip.upper, Upper::Icmp { kind, code });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn a_whole_frame_gives_what_was_put_in_and_every_cut_agrees(spec in specs()) {
        let (frame, upper_at) = build(&spec);
        matches_spec(&spec, &frame, upper_at);
        for len in 0..=frame.len() {
            parsers_agree(&frame[..len], true);
        }
    }

    #[test]
    fn mutated_frames_agree_as_far_as_both_go(
        spec in specs(),
        mutations in proptest::collection::vec((12usize..120, any::<u8>()), 1..5),
    ) {
        let (mut frame, _) = build(&spec);
        for (at, value) in mutations {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        parsers_agree(&frame, false);
        parsers_agree(&frame[..frame.len() * 2 / 3], false);
    }
}
