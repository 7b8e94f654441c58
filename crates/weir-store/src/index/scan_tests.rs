use weir_filter::possible::Facts;

use super::*;

fn ethernet(kind: u16, packet: &[u8]) -> Vec<u8> {
    [&[2; 12][..], &kind.to_be_bytes(), packet].concat()
}

/// From 10.0.0.1, port 4242, to 10.0.0.2, port 80.
fn v4(first: u8, fragment: u16, protocol: u8, options: usize) -> Vec<u8> {
    let [f0, f1] = fragment.to_be_bytes();
    let mut packet =
        vec![first, 0, 0, 28, 0, 1, f0, f1, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet.extend(vec![1; options]);
    packet.extend([0x10, 0x92, 0, 80, 0, 8, 0, 0]);
    packet
}

fn v6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 8, next, 64];
    packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    packet.extend(rest);
    packet
}

fn set(link_type: u16, frames: &[&[u8]]) -> Set {
    let mut scan = Scan::new();
    for frame in frames {
        scan.add(1, link_type, frame, frame.len() as u32);
    }
    scan.finish(0, 4096).set
}

#[track_caller]
fn has(set: &Set, keys: &[(Kind, u32)], but_not: &[(Kind, u32)]) {
    for &(kind, value) in keys {
        assert!(set.may_have(kind, value), "{kind:?} {value:#x}");
    }
    for &(kind, value) in but_not {
        assert!(!set.may_have(kind, value), "not {kind:?} {value:#x}");
    }
}

use Kind::{EtherType, Port, Protocol, V4Address, V6Word, Vlan};

#[test]
fn fields_of_plain_frames_are_in() {
    let hosts = [(V4Address, 0x0a00_0001), (V4Address, 0x0a00_0002)];
    let ports = [(Port, 4242), (Port, 80)];
    let plain = set(1, &[&ethernet(0x800, &v4(0x45, 0x4000, 6, 0))]);
    has(
        &plain,
        &[&hosts[..], &ports, &[(EtherType, 0x800), (Protocol, 6)]].concat(),
        &[(Port, 81), (Vlan, 0)],
    );
    let options = set(1, &[&ethernet(0x800, &v4(0x4f, 0, 17, 40))]);
    has(&options, &[&hosts[..], &ports].concat(), &[(Port, 0x0101)]);
    let later = set(1, &[&ethernet(0x800, &v4(0x45, 7, 17, 0))]);
    has(&later, &[&hosts[..], &[(Protocol, 17), (Port, UNSEEN)]].concat(), &ports);
    let raw = set(101, &[&v4(0x45, 0, 6, 0)]);
    has(&raw, &[&hosts[..], &ports, &[(EtherType, 0x800)]].concat(), &[]);
    let six = set(1, &[&ethernet(0x86dd, &v6(17, &[0x10, 0x92, 0, 80]))]);
    has(
        &six,
        &[&ports[..], &[(V6Word(0), 0xfd00_0000), (V6Word(3), 2)]].concat(),
        &[(V6Word(0), 2)],
    );
}

#[test]
fn tags_and_arp_are_in() {
    let tag = |kind: u16, id: u8, frame: &[u8]| {
        [&frame[..12], &kind.to_be_bytes(), &[0x60, id], &frame[12..]].concat()
    };
    let arp = [&[0; 14][..], &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 9]].concat();
    let mut frame = ethernet(0x806, &arp);
    for id in 1..=4 {
        frame = tag(0x8100, id, &frame);
    }
    let four = set(1, &[&frame]);
    let keys =
        [(Vlan, 1), (Vlan, 4), (EtherType, 0x8100), (EtherType, 0x806), (V4Address, 0x0a00_0009)];
    has(&four, &keys, &[(Vlan, 5)]);
    // Headers after a fifth tag are not read.
    let five = set(1, &[&tag(0x88a8, 5, &frame)]);
    has(&five, &[(Vlan, 5), (EtherType, 0x88a8)], &[(EtherType, 0x806), (Vlan, 1)]);
}

#[test]
fn a_frame_cut_anywhere_has_the_fields_before_the_cut() {
    let frame = ethernet(0x800, &v4(0x45, 0, 6, 0));
    for (len, key) in [
        (14, (EtherType, 0x800)),
        (24, (Protocol, 6)),
        (30, (V4Address, 0x0a00_0001)),
        (36, (Port, 4242)),
    ] {
        has(&set(1, &[&frame[..len]]), &[key], &[]);
        has(&set(1, &[&frame[..len - 1]]), &[], &[key]);
    }
}

#[test]
fn a_piece_tells_of_its_own_frames_only() {
    let frame = ethernet(0x800, &v4(0x45, 0, 6, 0));
    let mut scan = Scan::new();
    for ts_ns in [7, 3, 9] {
        scan.add(ts_ns, 1, &frame, frame.len() as u32);
    }
    let piece = scan.finish(4096, 8192);
    let Piece { at, bytes, frames, first_ns, last_ns, ref set } = piece;
    assert_eq!((at, bytes, frames, first_ns, last_ns), (4096, 8192, 3, 3, 9));
    assert!(set.may_have(Port, 80));
    let empty = scan.finish(0, 4096);
    assert_eq!((empty.frames, empty.first_ns, &empty.set), (0, 0, &Set::default()));
    // Recent keys and ports are forgotten, too.
    scan.add(1, 1, &frame, frame.len() as u32);
    assert_eq!(scan.finish(0, 4096).set, *set);
}

#[test]
fn a_frame_that_was_not_seen_may_be_anything() {
    let mut scan = Scan::new();
    scan.add_unknown(5);
    assert_eq!(scan.finish(0, 4096).set, Set::everything());
    scan.add(5, 1, &[0; 60], 61);
    assert_eq!(scan.finish(0, 4096).set, Set::everything());
    scan.add(5, 1, &[0; HEAD_BYTES], 1514);
    assert_ne!(scan.finish(0, 4096).set, Set::everything());
}

#[test]
fn flows_behind_what_programs_do_not_step_over_are_found() {
    let hosts = ["fd00::1", "fd00::2"].map(|host| host.parse().unwrap());
    let plain = set(1, &[&ethernet(0x86dd, &v6(17, &[0x10, 0x92, 0, 80]))]);
    assert!(plain.may_have_flow(hosts, 17, Some([80, 4242])));
    assert!(!plain.may_have_flow(hosts, 17, Some([80, 4243])));
    assert!(!plain.may_have_flow(hosts, 6, Some([80, 4242])));
    assert!(!plain.may_have_flow([hosts[0], "fd00::3".parse().unwrap()], 17, None));
    let hops = set(1, &[&ethernet(0x86dd, &v6(0, &[17, 0, 1, 4, 0, 0, 0, 0, 0x10, 0x92, 0, 80]))]);
    assert!(hops.may_have_flow(hosts, 17, Some([80, 4242])));
    assert!(!hops.may_have(Port, 80));
}
