use proptest::prelude::*;

use super::*;
use crate::options::DumpForm;
use frames::{SYN, dns, ethernet, udp, v4};

#[path = "../../tests/frames/mod.rs"]
mod frames;

const ETHERNET: u16 = 1;
const RAW: u16 = 101;

fn text(link_type: u16, data: &[u8], options: &Options) -> String {
    let frame = Frame { link_type, data, wire_len: data.len() as u32, flags: None };
    let mut out = Vec::new();
    write_line(&mut out, &frame, options);
    String::from_utf8(out).expect("ASCII")
}

fn line(link_type: u16, data: &[u8]) -> String {
    text(link_type, data, &Options::default())
}

const SYN_TEXT: &str = "IP 10.0.0.1.4242 > 10.0.0.2.80: Flags [S], seq 9, win 65535, options \
                        [mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 7], length 0";

#[test]
fn tcp_has_flags_numbers_and_options() {
    assert_eq!(line(RAW, &v4(6, 0, &SYN)), SYN_TEXT);
    let mut segment = SYN;
    segment[13] = 0x18;
    segment[11] = 5;
    let data = [&segment[..], b"data"].concat();
    let shown = line(RAW, &v4(6, 0, &data));
    assert!(shown.contains("Flags [P.], seq 9:13, ack 5, win 65535, "), "{shown}");
    assert!(shown.ends_with(", length 4"), "{shown}");
}

#[test]
fn a_packet_cut_anywhere_says_in_which_header_and_keeps_its_lengths() {
    let whole = ethernet(0x0800, &v4(6, 0, &[&SYN[..], &[0; 100]].concat()));
    for (kept, end) in [
        (10, "[|ether]"),
        (20, "IP [|ip]"),
        (36, "IP 10.0.0.1 > 10.0.0.2: [|tcp]"),
        (40, "IP 10.0.0.1.4242 > 10.0.0.2.80: [|tcp]"),
        (61, "options [mss 1460,sackOK,[|tcp-options]], length 100"),
        (80, "length 100"),
    ] {
        let frame = Frame {
            link_type: ETHERNET,
            data: &whole[..kept],
            wire_len: whole.len() as u32,
            flags: None,
        };
        let mut out = Vec::new();
        write_line(&mut out, &frame, &Options::default());
        let shown = String::from_utf8(out).unwrap();
        assert!(shown.ends_with(end), "{kept}: {shown}");
    }
}

#[test]
fn inner_packets_of_tunnels_are_shown() {
    let inner = v4(6, 0, &SYN);
    let bridged = ethernet(0x0800, &inner);
    let mpls = [&[0, 1, 0x80, 255, 0, 1, 0x91, 64][..], &inner].concat();
    for (frame, before) in [
        (ethernet(0x8100, &[&[0x60, 5, 8, 0][..], &inner].concat()), "vlan 5, p 3, "),
        (
            ethernet(0x88a8, &[&[0, 7, 0x81, 0, 0x10, 5, 8, 0][..], &inner].concat()),
            "vlan 7, p 0, vlan 5, p 0, DEI, ",
        ),
        (ethernet(0x8847, &mpls), "MPLS (label 24, tc 0, ttl 255) (label 25, tc 0, [S], ttl 64) "),
        (
            ethernet(0x0800, &v4(47, 0, &[&[0x20, 0, 8, 0, 0, 0, 0, 9][..], &inner].concat())),
            "IP 10.0.0.1 > 10.0.0.2: GREv0, key=0x9, length 68: ",
        ),
        (
            ethernet(0x0800, &v4(47, 0, &[&[0, 0, 0x65, 0x58][..], &bridged].concat())),
            "IP 10.0.0.1 > 10.0.0.2: GREv0, length 78: ",
        ),
        (
            ethernet(
                0x0800,
                &v4(17, 0, &udp(9, 4789, &[&[8, 0, 0, 0, 0, 0, 100, 0][..], &bridged].concat())),
            ),
            "IP 10.0.0.1.9 > 10.0.0.2.4789: VXLAN, flags [I] (0x08), vni 100: ",
        ),
        (
            ethernet(
                0x0800,
                &v4(
                    17,
                    0,
                    &udp(
                        9,
                        6081,
                        &[&[1, 0, 0x65, 0x58, 0, 0, 100, 0, 0, 0, 0, 0][..], &bridged].concat(),
                    ),
                ),
            ),
            "IP 10.0.0.1.9 > 10.0.0.2.6081: Geneve, Flags [none], vni 0x64, options [4 bytes]: ",
        ),
        (ethernet(0x0800, &v4(4, 0, &inner)), "IP 10.0.0.1 > 10.0.0.2: "),
        (
            ethernet(0x8864, &[&[0x11, 0, 0, 1, 0, 62, 0, 0x21][..], &inner].concat()),
            "PPPoE [ses 0x1] ",
        ),
    ] {
        assert_eq!(line(ETHERNET, &frame), format!("{before}{SYN_TEXT}"));
    }
}

#[test]
fn every_link_type_leads_to_its_packet() {
    let inner = v4(6, 0, &SYN);
    let behind = |head: &[u8]| [head, &inner].concat();
    let sll = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0];
    let sll2 = [8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    for (link_type, frame, before) in [
        (101, inner.clone(), ""),
        (228, inner.clone(), ""),
        (12, inner.clone(), ""),
        (0, behind(&[2, 0, 0, 0]), ""),
        (108, behind(&[0, 0, 0, 2]), ""),
        (113, behind(&sll), ""),
        (276, behind(&sll2), "if3 Out "),
        (9, behind(&[0xff, 3, 0, 0x21]), ""),
        (9, behind(&[0x21]), ""),
        (50, behind(&[0x0f, 0, 8, 0]), ""),
        (104, behind(&[0x0f, 0, 8, 0]), ""),
    ] {
        assert_eq!(line(link_type, &frame), format!("{before}{SYN_TEXT}"), "{link_type}");
    }
    assert_eq!(line(147, &inner), "link type 147, length 60");
}

/// Source: the output of `tcpdump -e` for such frames.
#[test]
fn a_cooked_header_is_written_as_tcpdump_writes_it() {
    let inner = v4(6, 0, &SYN);
    let with_link = |link_type, head: &[u8]| {
        let frame = [head, &inner[..]].concat();
        let options = Options { link: true, ..Options::default() };
        text(link_type, &frame, &options)
    };
    let packet = SYN_TEXT.strip_prefix("IP ").expect("its name, which the ethertype has said");
    for (kind, way) in [(0, " In"), (1, "  B"), (4, "Out"), (9, "  ?")] {
        let sll = [0, kind, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0];
        let link = "02:00:00:00:00:01 ethertype IPv4 (0x0800), length 76: ";
        assert_eq!(with_link(113, &sll), format!("{way} {link}{packet}"));
    }
    let sll2 = [8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];
    let link = "02:00:00:00:00:01 ethertype IPv4 (0x0800), length 80: ";
    assert_eq!(with_link(276, &sll2), format!("if3 In  {link}{packet}"));
}

#[test]
fn icmp_arp_and_dns_have_tcpdumps_words() {
    let ping = [8, 0, 0, 0, 0, 1, 0, 2];
    assert_eq!(
        line(RAW, &v4(1, 0, &ping)),
        "IP 10.0.0.1 > 10.0.0.2: ICMP echo request, id 1, seq 2, length 8"
    );
    let quoted = v4(17, 0, &udp(5, 53, b""));
    assert_eq!(
        line(RAW, &v4(1, 0, &[&[3, 3, 0, 0, 0, 0, 0, 0][..], &quoted].concat())),
        "IP 10.0.0.1 > 10.0.0.2: ICMP 10.0.0.2 udp port 53 unreachable, length 36"
    );
    let arp =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
    assert_eq!(
        line(ETHERNET, &ethernet(0x0806, &[&arp[..], &[0; 18]].concat())),
        "ARP, Request who-has 10.0.0.2 tell 10.0.0.1, length 46"
    );
    let asked = dns(0x0100, [1, 0, 0, 0], b"");
    assert_eq!(
        line(RAW, &v4(17, 0, &udp(5, 53, &asked))),
        "IP 10.0.0.1.5 > 10.0.0.2.53: 4660+ A? example.com. (29)"
    );
    let answer = dns(0x8180, [1, 1, 0, 0], b"\xc0\x0c\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0\x01");
    assert_eq!(
        line(RAW, &v4(17, 0, &udp(53, 5, &answer))),
        "IP 10.0.0.1.53 > 10.0.0.2.5: 4660 1/0/0 A 10.0.0.1 (45)"
    );
    // A compressed name whose pointer points at itself.
    let endless = dns(0x8183, [1, 1, 0, 0], b"\xc0\x1d\0\x01\0\x01\0\0\0\x05\0\x04\x0a\0\0\x01");
    assert_eq!(
        line(RAW, &v4(17, 0, &udp(53, 5, &endless))),
        "IP 10.0.0.1.53 > 10.0.0.2.5: 4660 NXDomain 1/0/0 [malformed domain] (45)"
    );
}

#[test]
fn stp_and_lldp_are_named() {
    let mut stp = vec![0x42, 0x42, 3, 0, 0, 0, 0, 0x81];
    stp.extend([0x80, 0, 2, 0, 0, 0, 0, 9, 0, 0, 0, 0]);
    stp.extend([0x80, 1, 2, 0, 0, 0, 0, 8, 0x80, 5, 0, 0, 20, 0, 2, 0, 15, 0]);
    assert_eq!(
        line(ETHERNET, &ethernet(stp.len() as u16, &stp)),
        "STP 802.1d, Config, Flags [Topology change, Topology change ACK], bridge-id \
         8001.02:00:00:00:00:08.8005, length 35"
    );
    let lldp = [2, 3, 7, b'a', b'b', 10, 4, b's', b'w', 0x1b, b'1', 0, 0];
    assert_eq!(line(ETHERNET, &ethernet(0x88cc, &lldp)), "LLDP, length 13: sw\\0331");
}

#[test]
fn fragments_and_frames_between_offloads_are_named() {
    let first = v4(17, 0x2000, &udp(5, 6, &[0; 8]));
    assert_eq!(line(RAW, &first), "IP 10.0.0.1.5 > 10.0.0.2.6: UDP, length 8 [first fragment]");
    assert_eq!(
        line(RAW, &v4(17, 185, &[0; 20])),
        "IP 10.0.0.1 > 10.0.0.2: udp fragment, offset 1480, length 20"
    );
    let mut huge = v4(6, 0, &[&SYN[..], &[0; 3000]].concat());
    huge[2..4].fill(0);
    assert!(line(RAW, &huge).ends_with(", length 3000 [super-frame, IP length 0]"));
    let frame =
        Frame { link_type: RAW, data: &huge, wire_len: 3060, flags: Some(Flags::SUPER_FRAME) };
    let mut out = Vec::new();
    write_line(&mut out, &frame, &Options::default());
    assert!(out.ends_with(b", length 3000 [super-frame]"));
}

#[test]
fn more_of_the_headers_and_the_link_layer_are_shown_when_asked_for() {
    let frame = ethernet(0x0800, &v4(6, 0x4000, &SYN));
    let options = Options { verbose: true, link: true, ..Options::default() };
    let shown = text(ETHERNET, &frame, &options);
    let (head, tail) = shown.split_once(" (incorrect -> ").expect("the sum is 0");
    assert_eq!(
        head,
        "02:00:00:00:00:01 > 02:00:00:00:00:02, ethertype IPv4 (0x0800), length 74: (tos 0x0, ttl 64, id 7, offset \
         0, flags [DF], proto TCP (6), length 60) 10.0.0.1.4242 > 10.0.0.2.80: Flags [S], cksum 0x0000"
    );
    let sum = u16::from_str_radix(&tail[2..6], 16).unwrap();
    let unchecked = text(ETHERNET, &frame, &Options { unchecked: true, ..options });
    assert!(
        unchecked.contains("Flags [S], seq 9, ") && !unchecked.contains("cksum"),
        "{unchecked}"
    );
    let mut segment = SYN;
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let right = text(RAW, &v4(6, 0, &segment), &options);
    assert!(right.contains(" (correct), seq 9, "), "{right}");
    let unready = Frame {
        link_type: RAW,
        data: &v4(6, 0, &SYN),
        wire_len: 60,
        flags: Some(Flags::CHECKSUM_NOT_READY),
    };
    let mut out = Vec::new();
    write_line(&mut out, &unready, &options);
    assert!(String::from_utf8(out).unwrap().contains("cksum 0x0000 (left to the NIC)"));
}

#[test]
fn bytes_of_the_packet_begin_behind_tags_and_802_2() {
    let packet = v4(17, 0, &udp(5, 6, b"text\r\n"));
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &packet].concat();
    for frame in [
        ethernet(0x0800, &packet),
        ethernet(0x8100, &[&[0x60, 5, 8, 0][..], &packet].concat()),
        ethernet(0x88a8, &[&[0, 7, 0x81, 0, 0x10, 5, 8, 0][..], &packet].concat()),
        ethernet(snap.len() as u16, &snap),
    ] {
        let shown =
            |bytes, form| text(ETHERNET, &frame, &Options { bytes, form, ..Options::default() });
        assert!(shown(Dump::Packet, DumpForm::Hex).contains("\n\t0x0000:  4500 "), "{frame:x?}");
        assert!(shown(Dump::Packet, DumpForm::Text).contains("\nE."), "{frame:x?}");
        assert!(shown(Dump::Frame, DumpForm::Text).ends_with("text\n"), "{frame:x?}");
        assert!(shown(Dump::Frame, DumpForm::HexAndText).contains("\n\t0x0000:  02"), "{frame:x?}");
    }
    let tags = ethernet(0x8100, &[0, 1, 0x81, 0].repeat(3));
    text(ETHERNET, &tags, &Options { bytes: Dump::Packet, ..Options::default() });
}

#[test]
fn packets_inside_packets_end() {
    let mut packet = v4(6, 0, &SYN);
    for _ in 0..20 {
        packet = v4(4, 0, &packet);
    }
    assert!(line(RAW, &packet).ends_with("[too many headers]"));
    assert!(line(ETHERNET, &ethernet(0x8100, &[0, 1, 0x81, 0].repeat(300))).len() < 500);
}

#[test]
fn only_coloured_lines_have_escapes() {
    let packet = v4(6, 0, &SYN);
    let options = Options { color: true, ..Options::default() };
    let colored = text(RAW, &packet, &options);
    assert!(colored.starts_with("\x1b[1mIP \x1b[0m") && colored.contains("[\x1b[32mS\x1b[0m]"));
    assert!(!line(RAW, &packet).contains('\x1b'));
}

fn without_escapes(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').expect("an escape").1)
}

#[test]
fn an_ipv6_packet_without_payload_may_have_padding() {
    let mut packet = [0; 46];
    (packet[0], packet[6]) = (0x60, 59);
    assert!(!line(RAW, &packet).contains("super-frame"), "{}", line(RAW, &packet));
    let longer = [&packet[..], &[0; 10]].concat();
    assert_ne!(line(RAW, &longer), line(RAW, &packet));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn any_bytes_make_one_line(
        mut data in proptest::collection::vec(any::<u8>(), 0..160),
        more in 0u32..2000,
        link_type in proptest::sample::select(vec![0u16, 1, 9, 50, 101, 104, 108, 113, 228, 229, 276]),
        kind in proptest::sample::select(vec![0x0800u16, 0x0806, 0x86dd, 0x8100, 0x8847, 0x8864, 0x88cc, 38]),
        protocol in proptest::sample::select(vec![0u8, 1, 2, 4, 6, 17, 41, 44, 47, 50, 51, 58, 132]),
        port in proptest::sample::select(vec![53u16, 4789, 5353, 6081, 9]),
        verbose: bool, link: bool,
    ) {
        if link_type == ETHERNET && data.len() > 40 {
            data[12..14].copy_from_slice(&kind.to_be_bytes());
            data[14] = if kind == 0x86dd { 0x60 } else { 0x45 };
            data[if kind == 0x86dd { 20 } else { 23 }] = protocol;
            data[36..38].copy_from_slice(&port.to_be_bytes());
        }
        let frame = Frame { link_type, data: &data, wire_len: data.len() as u32 + more, flags: None };
        let mut out = Vec::new();
        write_line(&mut out, &frame, &Options { verbose, link, ..Options::default() });
        let text = String::from_utf8(out).expect("ASCII");
        let mut out = Vec::new();
        write_line(&mut out, &frame, &Options { verbose, link, color: true, ..Options::default() });
        prop_assert_eq!(without_escapes(&String::from_utf8(out).expect("ASCII")), text.as_str());
        prop_assert!(text.chars().all(|c| !c.is_control()) && text.len() < 3000 && !text.is_empty());
    }
}
