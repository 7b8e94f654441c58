//! VLAN interfaces on top of the link: their frames are captured with their tags, as they are on the wire. The tests
//! need the kernel's 8021q module. If it is missing, they run in the guest of `make test`.

mod common;

use std::process::Command;

use common::frames::{CTAG, STAG, Sender, ipv4, ipv6, tagged};
use common::tools::{bytes_of, read};
use common::{HOOKS, Run, bed, closes, folder, number, path, ready, settle};
use weir_frame::record::Flags;
use weir_lab::Testbed;
use weir_lab::testbed::{End, ifindex, skip};

/// Creates a VLAN interface on top of the interface `below`; `None` if the kernel does not support that.
fn vlan(end: &End, below: &str, name: &str, protocol: &str, id: &str) -> Option<End> {
    let mut add = Command::new("ip");
    add.args(["-n", &end.netns, "link", "add", "link", below, "name", name, "type", "vlan"]);
    add.args(["proto", protocol, "id", id]);
    if !add.output().expect("ip runs").status.success() {
        return None;
    }
    common::sh(end, &format!("ip link set {name} up"));
    let ifindex = common::within(end, || ifindex(name)).expect("the interface");
    Some(End { iface: name.to_owned(), ifindex, ..end.clone() })
}

/// EtherType and VLAN id of a tag.
type Tag = (u16, u16);

/// Three VLAN interfaces on the sending end, one of them on top of another (QinQ), each with the tags that its frames
/// have on the wire, outer tag first.
fn vlans(bed: &Testbed) -> Option<Vec<(End, Vec<Tag>)>> {
    let single = vlan(&bed.tx, &bed.tx.iface, "c100", "802.1Q", "100")?;
    let outer = vlan(&bed.tx, &bed.tx.iface, "s200", "802.1ad", "200")?;
    let inner = vlan(&bed.tx, "s200", "c300", "802.1Q", "300")?;
    Some(vec![
        (single, vec![(CTAG, 100)]),
        (outer, vec![(STAG, 200)]),
        (inner, vec![(STAG, 200), (CTAG, 300)]),
    ])
}

#[test]
fn root_frames_of_vlan_interfaces_are_captured_with_their_tags() {
    let test = "root_frames_of_vlan_interfaces_are_captured_with_their_tags";
    let Some(_alone) = ready(test, &[]) else { return };
    let plain = [ipv4(60), ipv6(62), ipv4(1400)];
    let out = ["--engine bpf --hook tc", "--engine af_packet"].map(|hook| (hook, false));
    for (hook, at_rx) in HOOKS.map(|hook| (hook, true)).into_iter().chain(out) {
        let bed = bed();
        let Some(vlans) = vlans(&bed) else {
            return skip(test, "needs VLAN interfaces (the kernel's 8021q module)");
        };
        let dir = folder();
        let (file, name) = path(&dir, "vlan.pcapng");
        let (end, way) = if at_rx { (&bed.rx, Flags::INBOUND) } else { (&bed.tx, Flags::OUTBOUND) };
        let capture = Run::capture(end, &format!("{hook} --json --write {name}"));
        let mut expected = Vec::new();
        for (vlan, tags) in &vlans {
            let sender = Sender::new(vlan);
            for frame in &plain {
                sender.send(frame);
                let tag = |frame: Vec<u8>, &(protocol, id): &Tag| tagged(&frame, protocol, id);
                expected.push(tags.iter().rev().fold(frame.clone(), tag));
            }
        }
        settle();
        let json = capture.stop().expect(0).json();
        closes(&json);
        let what = format!("{hook} at {}: {json}", end.iface);
        // Before Linux 6.8, XDP does not see tags that the driver has removed; a note in the report says so.
        if json["sources"][0]["notes"].to_string().contains("do not reach XDP") {
            expected.iter_mut().for_each(|frame| drop(frame.drain(12..16)));
        }
        let (_, frames) = read(&file);
        for (got, expected) in bytes_of(&frames).iter().zip(&expected) {
            assert_eq!(got, expected, "{what}");
        }
        assert_eq!(frames.len(), expected.len(), "{what}");
        // XDP sees received frames only, so its records have no flags.
        assert!(
            frames.iter().all(|frame| frame.flags.is_none_or(|flags| flags.has(way))),
            "{what}"
        );
        assert!(frames.iter().all(|frame| frame.wire_len as usize == frame.data.len()), "{what}");
        let bytes: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(number(&json, "bytes"), bytes as u64, "{what}");
        println!(
            "{hook} at {}: {} frames, {}",
            end.iface,
            frames.len(),
            json["sources"][0]["notes"]
        );
    }
}
