//! Flows of traffic on real veth pairs. Each packet and each byte must be counted.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use weir_capture::Direction;
use weir_capture::bpf::{Hooks, TcAttach, hooks};
use weir_flow::{EndReason, FlowConfig, FlowRecord, merge};
use weir_flow_kernel::{Hook, KernelConfig, KernelCounters, KernelFlowError, KernelTable, now_ns};
use weir_lab::Testbed;
use weir_lab::generator::{self, Flows, GenEngine, GenOptions, Rate};
use weir_lab::testbed::{End, require_root};

/// IP bytes of the generator's smallest frames.
const IP_BYTES: u64 = 46;

fn at_xdp(flow: FlowConfig) -> KernelConfig {
    KernelConfig { flow, hook: Hook::Xdp, direction: Direction::In, ..KernelConfig::default() }
}

fn small() -> FlowConfig {
    FlowConfig { flows_max: 1 << 12, ..FlowConfig::default() }
}

fn open(end: &End, config: KernelConfig) -> KernelTable {
    let opened = end.run(|| KernelTable::open(&end.iface, config)).expect("the namespace is there");
    opened.expect("the kernel takes it")
}

/// Sends this number of frames of these flows from a packet socket: at the receiving end, TC sees them as well as
/// XDP.
fn send(from: &End, flows: Flows, frames: u64) -> u64 {
    let engine = GenEngine::AfPacket;
    let options = GenOptions { flows, frames: Some(frames), engine, ..GenOptions::default() };
    send_as(from, &options)
}

fn send_as(from: &End, options: &GenOptions) -> u64 {
    let stop = AtomicBool::new(false);
    let report = from.run(|| generator::run(&from.iface, options, &stop));
    report.expect("the namespace is there").expect("frames are sent").sent
}

/// Waits until this number of frames is counted: a softirq may process frames after the sender has returned.
fn wait_for(table: &KernelTable, frames: u64) {
    let begin = Instant::now();
    while table.counters().table.frames < frames {
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", table.counters());
        thread::sleep(Duration::from_millis(1));
    }
}

fn finish(table: &mut KernelTable, records: &mut Vec<FlowRecord>) -> KernelCounters {
    table.finish(&mut |record| records.push(record)).expect("a wait is allowed");
    let counters = table.counters();
    let packets: u64 = records.iter().map(FlowRecord::packets).sum();
    let of_no_flow = counters.table.not_flows.total();
    assert_eq!(packets + of_no_flow + counters.lost_packets, counters.table.frames);
    assert_eq!(counters.table.flows, 0);
    counters
}

fn total(records: &[FlowRecord]) -> (u64, u64) {
    let packets = records.iter().map(FlowRecord::packets).sum();
    (packets, records.iter().map(FlowRecord::bytes).sum())
}

#[test]
fn root_packets_and_bytes_are_those_that_were_sent() {
    if !require_root("root_packets_and_bytes_are_those_that_were_sent") {
        return;
    }
    for consume in [false, true] {
        let bed = Testbed::new().expect("a veth pair");
        let mut table = open(&bed.rx, KernelConfig { consume, ..at_xdp(small()) });
        let frames = Some(50_000);
        let options = GenOptions { flows: Flows::N(500), frames, ..GenOptions::default() };
        let sent = send_as(&bed.tx, &options);
        wait_for(&table, sent);
        let mut records = Vec::new();
        let counters = finish(&mut table, &mut records);
        assert_eq!((counters.table.frames, counters.table.evicted), (sent, 0));
        let merged = merge(records, false, false);
        assert_eq!((merged.len(), total(&merged)), (500, (sent, sent * IP_BYTES)));
        assert!(merged.iter().all(|flow| flow.packets() == sent / 500 && flow.key.dst_port == 9));
        // A second call has no record left to report.
        table.finish(&mut |record| panic!("{record:?}")).expect("nothing to wait for");
    }
}

#[test]
fn root_what_is_lost_is_counted() {
    if !require_root("root_what_is_lost_is_counted") {
        return;
    }
    let bed = Testbed::new().expect("a veth pair");
    let flow = FlowConfig { flows_max: 1 << 10, ..FlowConfig::default() };
    let config = KernelConfig { records_max: 64, ..at_xdp(flow) };
    let mut table = open(&bed.rx, config);
    let options = GenOptions { flows: Flows::Multi, frames: Some(20_000), ..GenOptions::default() };
    let sent = send_as(&bed.tx, &options);
    wait_for(&table, sent);
    let mut records = Vec::new();
    let counters = finish(&mut table, &mut records);
    assert_eq!((counters.table.frames, counters.table.began), (sent, sent));
    // Nobody has read records meanwhile, so at most 64 records of each CPU that received frames are kept.
    let evicted = counters.table.evicted;
    assert!(evicted >= sent - table.capacity() && counters.lost_records >= evicted - 64 * 2);
    assert_eq!(counters.lost_bytes, counters.lost_packets * IP_BYTES);
    assert_eq!(total(&records).1, total(&records).0 * IP_BYTES);
    let evictions = records.iter().filter(|r| r.reason == EndReason::LackOfResources).count();
    assert_eq!(evictions as u64, evicted - counters.lost_records);
}

#[test]
fn root_an_idle_flow_is_reported_once() {
    if !require_root("root_an_idle_flow_is_reported_once") {
        return;
    }
    let bed = Testbed::new().expect("a veth pair");
    let idle_timeout = Some(Duration::from_millis(100));
    let mut table = open(&bed.rx, at_xdp(FlowConfig { idle_timeout, ..small() }));
    let mut records = Vec::new();
    let mut sent = 0;
    for round in 1..=3 {
        sent += send(&bed.tx, Flows::Single, 1000);
        wait_for(&table, sent);
        let begin = Instant::now();
        while total(&records).0 < sent {
            assert!(begin.elapsed() < Duration::from_secs(20), "round {round}: {records:?}");
            table.poll(now_ns(), &mut |record| records.push(record));
        }
        assert_eq!(table.counters().table.flows, 0);
        assert_eq!(table.live().count(), 0);
        // A later poll does not report the flow again.
        table.poll(now_ns() + 1_000_000_000, &mut |record| panic!("{record:?}"));
    }
    assert!(records.iter().all(|record| record.reason == EndReason::Idle));
    assert!(records.len() >= 3);
    for record in &records {
        let since_epoch = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
        let age_ns = since_epoch.as_nanos() as u64 - record.first_ns;
        assert!(age_ns < 100_000_000_000 && record.first_ns <= record.last_ns);
    }
    finish(&mut table, &mut records);
    assert_eq!(total(&records), (sent, sent * IP_BYTES));
}

#[test]
fn root_a_long_flow_is_in_several_records() {
    if !require_root("root_a_long_flow_is_in_several_records") {
        return;
    }
    let bed = Testbed::new().expect("a veth pair");
    let active_timeout = Some(Duration::from_millis(100));
    let mut table = open(&bed.rx, at_xdp(FlowConfig { active_timeout, ..small() }));
    let options = GenOptions {
        rate: Rate::Pps(2000.0),
        frames: Some(1000),
        engine: GenEngine::AfPacket,
        ..GenOptions::default()
    };
    let sent = send_as(&bed.tx, &options);
    wait_for(&table, sent);
    let mut records = Vec::new();
    table.poll(now_ns(), &mut |record| records.push(record));
    // The last frame is sent 0.5 s after the first, or later.
    assert!(!records.is_empty() && records.iter().all(|r| r.reason == EndReason::Active));
    finish(&mut table, &mut records);
    assert_eq!(total(&records), (sent, sent * IP_BYTES));
}

#[test]
fn root_live_flows_are_read_whole() {
    if !require_root("root_live_flows_are_read_whole") {
        return;
    }
    let bed = Testbed::new().expect("a veth pair");
    // The table is small, so flows begin and end all the time.
    let active_timeout = Some(Duration::from_millis(100));
    let flow = FlowConfig { flows_max: 1 << 10, active_timeout, ..FlowConfig::default() };
    let mut table = open(&bed.rx, KernelConfig { consume: true, ..at_xdp(flow) });
    let mut records = Vec::new();
    let is_whole = |record: &FlowRecord| {
        let (packets, key) = (record.packets(), record.key);
        assert_eq!(record.bytes(), packets * IP_BYTES, "{record:?}");
        assert!(key.protocol == 17 && key.dst_port == 9 && key.src_port >= 0x8000, "{record:?}");
        assert!(record.first_ns <= record.last_ns && packets > 0, "{record:?}");
    };
    let done = AtomicBool::new(false);
    let mut looks = 0;
    let sent = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let flows =
                |flows, frames| GenOptions { flows, frames: Some(frames), ..GenOptions::default() };
            let sent = send_as(&bed.tx, &flows(Flows::Single, 500_000))
                + send_as(&bed.tx, &flows(Flows::N(1200), 500_000))
                + send_as(&bed.tx, &flows(Flows::Multi, 200_000));
            done.store(true, Relaxed);
            sent
        });
        while !done.load(Relaxed) {
            table.live().for_each(|record| is_whole(&record));
            table.poll(now_ns(), &mut |record| {
                is_whole(&record);
                records.push(record);
            });
            looks += 1;
        }
        sending.join().expect("no panic")
    });
    wait_for(&table, sent);
    let counters = finish(&mut table, &mut records);
    assert_eq!(counters.table.frames, sent);
    records.iter().for_each(is_whole);
    assert!(looks > 3);
}

#[test]
fn root_tc_counts_both_directions() {
    if !require_root("root_tc_counts_both_directions") {
        return;
    }
    for tc_attach in [TcAttach::Best, TcAttach::Clsact] {
        for (direction, received, sent) in
            [(Direction::Both, 1, 1), (Direction::In, 1, 0), (Direction::Out, 0, 1)]
        {
            let bed = Testbed::new().expect("a veth pair");
            let config =
                KernelConfig { flow: small(), direction, tc_attach, ..KernelConfig::default() };
            let mut table = open(&bed.rx, config);
            let came = send(&bed.tx, Flows::N(10), 1000);
            // The generator bypasses the queueing discipline, and so TC; an ordinary packet socket does not.
            let went = send_through_stack(&bed.rx, 300);
            let expected = came * received + went * sent;
            wait_for(&table, expected);
            let mut records = Vec::new();
            let counters = finish(&mut table, &mut records);
            assert_eq!(counters.table.frames, expected, "{direction:?} {tc_attach:?}");
            let of = |port: u16| -> Vec<FlowRecord> {
                records.iter().filter(|r| r.key.dst_port == port).copied().collect()
            };
            assert_eq!(total(&of(9)), (came * received, came * received * IP_BYTES));
            assert_eq!(total(&of(4242)), (went * sent, went * sent * 32));
        }
    }
}

/// A frame with an IP packet of 32 bytes, UDP from port 4242 to port 4242, and with a VLAN tag if a TCI is given.
fn udp_frame(vlan: Option<u16>) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    if let Some(vlan) = vlan {
        frame.extend([0x81, 0]);
        frame.extend(vlan.to_be_bytes());
    }
    frame.extend([8, 0, 0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0x10, 0x92, 0x10, 0x92, 0, 12, 0, 0, 1, 2, 3, 4]);
    frame.resize(60, 0);
    frame
}

fn send_through_stack(from: &End, frames: u64) -> u64 {
    send_frames(from, &udp_frame(None), frames)
}

/// Sends a frame this number of times, through the queueing discipline.
fn send_frames(from: &End, frame: &[u8], frames: u64) -> u64 {
    let sent = from.run(|| {
        // SAFETY: no pointers are passed; a descriptor or -1 comes back.
        let socket =
            unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(socket >= 0);
        // SAFETY: plain data, for which zeroes are a value.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = from.ifindex as i32;
        for _ in 0..frames {
            // SAFETY: frame and address are readable for the lengths beside them, and live through the call.
            let done = unsafe {
                libc::sendto(
                    socket,
                    frame.as_ptr().cast(),
                    frame.len(),
                    0,
                    (&raw const to).cast(),
                    size_of_val(&to) as u32,
                )
            };
            assert_eq!(done, frame.len() as isize, "{}", std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is open, and nobody uses it any more.
        unsafe { libc::close(socket) };
        frames
    });
    sent.expect("the namespace is there")
}

#[test]
fn root_vlans_are_told_apart() {
    if !require_root("root_vlans_are_told_apart") {
        return;
    }
    for hook in [Hook::Tc, Hook::Xdp] {
        let bed = Testbed::new().expect("a veth pair");
        let flow = FlowConfig { by_vlan: true, ..small() };
        let config =
            KernelConfig { flow, hook, direction: Direction::In, ..KernelConfig::default() };
        let mut table = open(&bed.rx, config);
        for (vlan, frames) in [(None, 3), (Some(7), 4), (Some(0x2008), 5)] {
            send_frames(&bed.tx, &udp_frame(vlan), frames);
        }
        wait_for(&table, 12);
        let mut records = Vec::new();
        finish(&mut table, &mut records);
        let mut merged: Vec<_> = merge(records, false, false)
            .iter()
            .map(|record| (record.vlan, record.packets(), record.bytes()))
            .collect();
        merged.sort_unstable();
        assert_eq!(merged, [(None, 3, 96), (Some(7), 4, 128), (Some(8), 5, 160)], "{hook:?}");
    }
}

#[test]
fn root_interfaces_share_a_table() {
    if !require_root("root_interfaces_share_a_table") {
        return;
    }
    for (hook, by_interface) in [(Hook::Tc, true), (Hook::Xdp, true), (Hook::Xdp, false)] {
        let bed = Testbed::new().expect("a veth pair");
        let pairs = bed.add_pairs(1, 2).expect("more pairs");
        pairs.iter().for_each(|pair| pair.wait_for_carrier().expect("a carrier"));
        let flow = FlowConfig { by_interface, ..small() };
        let config =
            KernelConfig { flow, hook, direction: Direction::In, ..KernelConfig::default() };
        let opened = bed.rx.run(|| KernelTable::open_all(&["wrx0", "wrx1", "wrx2"], config));
        let mut table = opened.expect("the namespace is there").expect("the kernel takes it");
        let ends = [&bed.tx, &pairs[0].tx, &pairs[1].tx];
        let sent: Vec<u64> =
            ends.iter().zip([100, 200, 300]).map(|(end, n)| send(end, Flows::Single, n)).collect();
        wait_for(&table, 600);
        let mut records = Vec::new();
        finish(&mut table, &mut records);
        let merged = merge(records, false, by_interface);
        let mut packets: Vec<_> = merged.iter().map(|r| (r.interface, r.packets())).collect();
        packets.sort_unstable();
        let apart = [(0, sent[0]), (1, sent[1]), (2, sent[2])];
        if by_interface {
            assert_eq!(packets, apart, "{hook:?}");
        } else {
            assert_eq!(packets, [(0, 600)]);
        }
    }
}

fn hooks_of(end: &End) -> Hooks {
    end.run(|| hooks(end.ifindex)).expect("the namespace is there")
}

#[test]
fn root_nothing_is_left_behind() {
    if !require_root("root_nothing_is_left_behind") {
        return;
    }
    let bed = Testbed::new().expect("a veth pair");
    let before = hooks_of(&bed.rx);
    for hook in [Hook::Tc, Hook::Xdp] {
        for finishes in [true, false] {
            let direction = if hook == Hook::Tc { Direction::Both } else { Direction::In };
            let config = KernelConfig { flow: small(), hook, direction, ..KernelConfig::default() };
            let mut table = open(&bed.rx, config);
            assert_ne!(hooks_of(&bed.rx).programs, before.programs);
            if finishes {
                table.finish(&mut |record| panic!("{record:?}")).expect("a wait is allowed");
                assert_eq!(hooks_of(&bed.rx).programs, before.programs);
            }
            drop(table);
            assert_eq!(hooks_of(&bed.rx).programs, before.programs);
        }
    }
}

#[test]
fn root_one_interface_that_fails_leaves_the_others_alone() {
    if !require_root("root_one_interface_that_fails_leaves_the_others_alone") {
        return;
    }
    let bed = Testbed::new().expect("a veth pair");
    let before = hooks_of(&bed.rx);
    let config = || KernelConfig { flow: small(), ..KernelConfig::default() };
    let opened = bed.rx.run(|| KernelTable::open_all(&["wrx0", "absent0"], config()).map(drop));
    let error = opened.expect("the namespace is there").expect_err("there is none of that name");
    assert!(error.to_string().contains("absent0"), "{error}");
    assert_eq!(hooks_of(&bed.rx).programs, before.programs);
    // The XDP hook of an interface holds only one program.
    let _table = open(&bed.rx, at_xdp(small()));
    let again = bed.rx.run(|| KernelTable::open("wrx0", at_xdp(small())).map(drop));
    let error = again.expect("the namespace is there").expect_err("it has one program");
    assert!(error.to_string().contains("weir_flow_at"), "{error}");
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let refused = |config: KernelConfig, word: &str| {
        let Err(error) = KernelTable::open("lo", config) else { panic!("it was taken: {word}") };
        assert!(error.to_string().contains(word), "{error}");
    };
    refused(at_xdp(FlowConfig { biflow: true, ..small() }), "biflow");
    refused(at_xdp(FlowConfig { flows_max: 10, ..small() }), "flows");
    let idle_timeout = Some(Duration::from_millis(1));
    refused(at_xdp(FlowConfig { idle_timeout, ..small() }), "time-out");
    refused(KernelConfig { direction: Direction::Both, ..at_xdp(small()) }, "XDP");
    refused(KernelConfig { consume: true, ..KernelConfig::default() }, "XDP");
    refused(KernelConfig { records_max: 100, ..at_xdp(small()) }, "power of two");
    let none = KernelTable::open_all(&[], at_xdp(small()));
    assert!(matches!(none, Err(KernelFlowError::Interfaces(0))));
}
