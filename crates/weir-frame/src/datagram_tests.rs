use std::collections::HashSet;

use super::*;

fn to(destination: &str) -> Addressing {
    Addressing {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        vlans: Vec::new(),
        source: None,
        destination: destination.parse().expect("an address"),
        source_port: None,
        destination_port: 53,
        payload: None,
    }
}

fn frame(addressing: &Addressing, bytes: usize, flow: u32, number: u64, stamp: u64) -> Vec<u8> {
    let datagrams = Datagrams::new(addressing, bytes);
    // The same frame is written twice, as a generator reuses its frames.
    let mut frame = datagrams.blank().to_vec();
    datagrams.write(&mut frame, flow ^ 77, number ^ 77, stamp);
    datagrams.write(&mut frame, flow, number, stamp);
    frame
}

/// Checks the checksums and the UDP length from the bytes of the frame alone.
fn checksums_hold(frame: &[u8], link_bytes: usize) {
    let packet = &frame[link_bytes..];
    let (header, addresses, udp_bytes) = match packet[0] >> 4 {
        4 => (20, &packet[12..20], usize::from(u16::from_be_bytes([packet[2], packet[3]])) - 20),
        _ => (40, &packet[8..40], usize::from(u16::from_be_bytes([packet[4], packet[5]]))),
    };
    if header == 20 {
        assert_eq!(fold(word_sum(&packet[..20])), 0);
    }
    let udp = &packet[header..][..udp_bytes];
    assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp_bytes);
    let sum = word_sum(addresses) + word_sum(udp) + udp_bytes as u64 + 17;
    assert_eq!(fold(sum), 0);
    assert_ne!(udp[6..8], [0, 0]);
}

#[test]
fn checksums_hold_for_every_form() {
    for destination in ["192.0.2.9", "2001:db8::9"] {
        for vlans in [vec![], vec![5], vec![7, 4094]] {
            for (payload, bytes) in [
                (None, 86),
                (None, 1514),
                (Some((b"odd".to_vec(), false)), 86),
                (Some((b"odd".to_vec(), true)), 1515),
                (Some((vec![], false)), 90),
                (Some((vec![0xff; 700], true)), 900),
            ] {
                let payload = payload.map(|(bytes, is_filled)| Payload { bytes, is_filled });
                let addressing = Addressing { vlans: vlans.clone(), payload, ..to(destination) };
                addressing.check().unwrap();
                let link_bytes = 14 + 4 * vlans.len();
                for number in [0, 1, u64::from(u32::MAX), u64::MAX] {
                    let frame = frame(&addressing, bytes, number as u32, number, number / 3);
                    assert_eq!(frame.len(), bytes);
                    checksums_hold(&frame, link_bytes);
                }
            }
        }
    }
}

#[test]
fn headers_say_what_was_asked_for() {
    let addressing = Addressing {
        vlans: vec![7, 42],
        source: Some("10.1.2.3".parse().unwrap()),
        source_port: Some(1234),
        payload: Some(Payload { bytes: b"hello".to_vec(), is_filled: false }),
        ..to("10.9.8.7")
    };
    let frame = frame(&addressing, 80, 5, 6, 0);
    let view = crate::headers::FrameView::parse(&frame);
    assert_eq!(frame[..14], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xa8]);
    assert_eq!(frame[14..22], [0, 7, 0x81, 0, 0, 42, 8, 0]);
    assert_eq!(view.packet()[12..20], [10, 1, 2, 3, 10, 9, 8, 7]);
    assert_eq!(view.packet()[20..26], [4, 210, 0, 53, 0, 13]);
    assert_eq!(view.packet()[28..33], *b"hello");
    assert!(view.packet()[33..].iter().all(|byte| *byte == 0));
    assert_eq!(addressing.flows_max(), 1);
}

#[test]
fn flows_differ_as_long_as_they_can() {
    let five_tuples = |addressing: &Addressing, flows: u32| -> usize {
        let frames = (0..flows).map(|flow| frame(addressing, 86, flow, 0, 0)[26..38].to_vec());
        frames.collect::<HashSet<_>>().len()
    };
    let both = to("192.0.2.9");
    assert_eq!(both.flows_max(), 1 << 32);
    assert_eq!(five_tuples(&both, 200_000), 200_000);
    let port = Addressing { source: Some("10.0.0.1".parse().unwrap()), ..both.clone() };
    assert_eq!(port.flows_max(), 32_768);
    assert_eq!(five_tuples(&port, 40_000), 32_768);
    let source = Addressing { source_port: Some(9), ..both };
    assert_eq!(source.flows_max(), 131_072);
    assert_eq!(five_tuples(&source, 140_000), 131_072);
}

#[test]
fn the_shortest_frame_holds_headers_and_number() {
    let sizes = |addressing: Addressing| [false, true].map(|is| addressing.frame_bytes_min(is));
    assert_eq!(sizes(to("192.0.2.9")), [60, 60]);
    assert_eq!(sizes(Addressing { vlans: vec![1, 2], ..to("192.0.2.9") }), [60, 66]);
    assert_eq!(sizes(to("2001:db8::9")), [70, 78]);
    let payload = Some(Payload { bytes: vec![0; 100], is_filled: false });
    assert_eq!(sizes(Addressing { payload, ..to("192.0.2.9") }), [142, 142]);
}

#[test]
fn what_makes_no_frame_is_refused() {
    let four = to("192.0.2.9");
    let refused = |addressing: Addressing, words: &str| {
        let error = addressing.check().unwrap_err();
        assert!(error.contains(words), "{error}");
    };
    let source = Some("2001:db8::1".parse().unwrap());
    refused(Addressing { source, ..four.clone() }, "not of one family");
    refused(Addressing { vlans: vec![4095], ..four.clone() }, "0 to 4094");
    refused(Addressing { vlans: vec![1, 2, 3], ..four.clone() }, "two VLAN tags");
    let payload = Some(Payload { bytes: vec![0; 65_488], is_filled: false });
    refused(Addressing { payload, ..four }, "65487 bytes");
}

fn unmix32(mut h: u32) -> u32 {
    // The factors are the inverses modulo 2^32 of those in `mix32`. x ^ x >> 16 is its own inverse; to invert x ^ x
    // >> 13 takes two shifts.
    h ^= h >> 16;
    h = h.wrapping_mul(0x7ed1_b41d);
    h ^= (h >> 13) ^ (h >> 26);
    h = h.wrapping_mul(0xa5cb_9243);
    h ^ (h >> 16)
}

#[test]
fn the_mix_can_be_undone_so_no_flow_repeats() {
    assert_eq!(0x85eb_ca6bu32.wrapping_mul(0xa5cb_9243), 1);
    assert_eq!(0xc2b2_ae35u32.wrapping_mul(0x7ed1_b41d), 1);
    for n in (0..=u32::MAX).step_by(997).chain([0, 1, u32::MAX - 1, u32::MAX]) {
        assert_eq!(unmix32(mix32(n)), n);
    }
}
