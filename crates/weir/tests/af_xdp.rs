//! Properties that only captures with AF_XDP sockets have: queues that are taken or missing, copiers that share a
//! queue, frames in parts. With `--consume`, the network stack does not get the frames.

mod common;

use std::collections::BTreeSet;

use common::frames::{Sender, ipv4};
use common::tools::{bytes_of, in_time_order, read};
use common::{Run, bed, closes, folder, generate, number, path, program, ready, settle, sh, weir};
use weir_lab::Testbed;
use weir_lab::generator::template::number_of;
use weir_lab::testbed::skip;

const AF_XDP: &str = "--engine af_xdp --consume";

#[test]
fn root_a_queue_that_is_taken_says_so_and_its_holder_goes_on() {
    let test = "root_a_queue_that_is_taken_says_so_and_its_holder_goes_on";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let first = Run::capture(&bed.rx, &format!("{AF_XDP} --json"));
    let second = weir(&format!("capture wrx0 {AF_XDP}"));
    Run::start(&bed.rx, second).end().refused(&["wrx0", "queue 0", "another AF_XDP socket"]);
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    assert_eq!(number(&first.stop().expect(0).json(), "delivered"), 1000);
}

#[test]
fn root_queues_that_are_not_there_are_refused() {
    let Some(_alone) = ready("root_queues_that_are_not_there_are_refused", &[]) else { return };
    let bed = bed();
    for queues in ["7", "0-7"] {
        let command = weir(&format!("capture wrx0 {AF_XDP} --queues {queues}"));
        Run::start(&bed.rx, command).end().refused(&[
            "--queues",
            "wrx0 has queues 0 to",
            "ethtool -l",
        ]);
    }
}

#[test]
fn root_queues_are_counted_where_the_driver_does_not_say() {
    let test = "root_queues_are_counted_where_the_driver_does_not_say";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let made = program("ip link add wd0 numrxqueues 3 type dummy");
    if Run::start(&bed.rx, made).end().code != Some(0) {
        return skip(test, "needs dummy interfaces (the kernel's dummy module)");
    }
    sh(&bed.rx, "ip link set wd0 up");
    let capture = |args: &str| format!("capture wd0 {AF_XDP} --duration 100ms --json {args}");
    // The kernel lists the queues in /sys; `ip netns exec` mounts the /sys of the network namespace.
    let inside = |args: &str| {
        let (netns, weir) = (&bed.rx.netns, env!("CARGO_BIN_EXE_weir"));
        Run::start(&bed.rx, program(&format!("ip netns exec {netns} {weir} {}", capture(args))))
            .end()
    };
    inside("--queues 3").refused(&["--queues", "wd0 has queues 0 to 2"]);
    let notes = |json: serde_json::Value| json["sources"][0]["notes"].to_string();
    assert!(!notes(inside("").expect(0).json()).contains("queue 0"));
    // Without it, /sys belongs to another network namespace, and is ignored.
    let outside = Run::start(&bed.rx, weir(&capture(""))).end().expect(0);
    assert!(notes(outside.json()).contains("taking queue 0"));
}

#[test]
fn root_a_bond_names_its_members_instead() {
    let test = "root_a_bond_names_its_members_instead";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let made = program("ip link add wb0 type bond");
    if Run::start(&bed.rx, made).end().code != Some(0) {
        return skip(test, "needs bonds (the kernel's bonding module)");
    }
    let capture = || weir(&format!("capture wb0 {AF_XDP}"));
    sh(&bed.rx, "ip link set wb0 up");
    Run::start(&bed.rx, capture()).end().refused(&["wb0 is a bond", "no members"]);
    sh(&bed.rx, "ip link set wrx0 down && ip link set wrx0 master wb0 && ip link set wrx0 up");
    Run::start(&bed.rx, capture()).end().refused(&[
        "wb0 is a bond",
        "members: wrx0",
        "--engine bpf",
    ]);
}

#[test]
fn root_a_frame_in_parts_is_taken_whole_or_goes_on_under_its_name() {
    let test = "root_a_frame_in_parts_is_taken_whole_or_goes_on_under_its_name";
    let Some(_alone) = ready(test, &[]) else { return };
    // The largest MTU whose frames fit in a chunk of a page. Even so, the longest frames come in two pages.
    let bed = Testbed::builder().gro(true).mtu(3818).build().unwrap();
    let dir = folder();
    let (file, name) = path(&dir, "parts.pcapng");
    let capture = Run::capture(&bed.rx, &format!("{AF_XDP} --json --write {name}"));
    let sender = Sender::new(&bed.tx);
    let sent = [60, 1514, 3832, 3832].map(ipv4);
    sent.iter().for_each(|frame| sender.send(frame));
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "offered"), 4, "{json}");
    let (_, frames) = read(&file);
    match number(&json["drops"], "in_parts") {
        0 => assert_eq!(bytes_of(&frames), sent),
        // Before Linux 6.6, AF_XDP sockets take no frames in parts.
        2 => assert_eq!(bytes_of(&frames), sent[..2]),
        parts => panic!("{parts} frames in parts: {json}"),
    }
}

#[test]
fn root_a_link_that_goes_down_under_traffic_leaves_nothing_unexplained() {
    let test = "root_a_link_that_goes_down_under_traffic_leaves_nothing_unexplained";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let mut capture = Run::capture(&bed.rx, &format!("{AF_XDP} --json"));
    let line = format!("gen {} --json --rate 100kpps --duration 2500ms", bed.tx.iface);
    let generator = Run::start(&bed.tx, weir(&line));
    // The line is printed once a second.
    capture.wait_for("frames", |run| {
        let said = run.stderr();
        said.lines().any(|line| line.contains("captured ") && !line.contains("captured 0 "))
    });
    // The driver stops and restarts its queues while frames are on their way through them.
    sh(&bed.rx, "for i in 1 2 3 4; do sleep 0.2; ip link set wrx0 down; ip link set wrx0 up; done");
    let sent = generator.end().expect(0).json();
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    assert!(number(&json, "delivered") > 0, "{json}");
    // Frames that were in the driver's queue when it was stopped never came to the hook.
    assert!(number(&json, "offered") <= number(&sent, "sent"), "{json} {sent}");
}

#[test]
fn root_copiers_share_a_queue_and_the_merge_keeps_the_order() {
    let test = "root_copiers_share_a_queue_and_the_merge_keeps_the_order";
    let Some(_alone) = ready(test, &[]) else { return };
    for copiers in [2, 3] {
        let bed = bed();
        let dir = folder();
        let (file, name) = path(&dir, "shared.pcapng");
        // The order is kept unless a copier is delayed longer than this; a busy machine may delay one by some 10 ms.
        let slack = "--merge-slack 1s";
        let args = format!("{AF_XDP} --copiers {copiers} {slack} --write {name} --json");
        let capture = Run::capture(&bed.rx, &args);
        let sent = number(&generate(&bed.tx, "--frames 50k --rate 100kpps"), "sent");
        settle();
        let json = capture.stop().expect(0).json();
        closes(&json);
        let (_, frames) = read(&file);
        in_time_order(&frames);
        let numbers: Vec<u64> = frames.iter().filter_map(|frame| number_of(&frame.data)).collect();
        // Frames get their time at the hook, in the order of arrival, and the merge restores exactly that order.
        assert!(numbers.is_sorted(), "{copiers} copiers");
        let once: BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!(once.len(), numbers.len());
        assert_eq!(numbers.len() as u64, number(&json, "delivered"));
        assert_eq!(number(&json, "offered"), sent, "{json}");
    }
}

#[test]
fn root_copiers_can_stamp() {
    let Some(_alone) = ready("root_copiers_can_stamp", &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "stamped.pcapng");
    let capture =
        Run::capture(&bed.rx, &format!("{AF_XDP} --timestamp copy --write {name} --json"));
    let before = std::time::SystemTime::now();
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    let (_, frames) = read(&file);
    assert_eq!(frames.len(), 1000);
    in_time_order(&frames);
    let before = before.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let range = before..before + 60_000_000_000;
    assert!(frames.iter().all(|frame| range.contains(&frame.ts_ns)));
}
