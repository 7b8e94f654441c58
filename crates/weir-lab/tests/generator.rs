//! The generator on a real veth pair: the number of frames that it reports as sent must be exactly
//! the number that arrives.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use weir_frame::datagram::{Addressing, Datagrams, Payload};
use weir_lab::generator::sink::{Sink, SinkCounts};
use weir_lab::generator::sizes::{IMIX, Sizes};
use weir_lab::generator::template::{DESTINATION_MAC, SOURCE_MAC, STAMP_AT, Template, number_of};
use weir_lab::generator::{self, Flows, GenEngine, GenOptions, GenReport, How, Rate};
use weir_lab::testbed::{Testbed, require_root};
use weir_lab::{Error, Result};

/// Allows one sender at a time, because the machine is small and shared.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn send(bed: &Testbed, options: &GenOptions) -> Result<GenReport> {
    bed.tx.run(|| generator::run(&bed.tx.iface, options, &AtomicBool::new(false)))?
}

fn sink(bed: &Testbed, flows_max: u32) -> Sink {
    bed.rx.run(|| Sink::attach(&bed.rx.iface, flows_max)).unwrap().unwrap()
}

/// The counts, once the kernel has processed all sent frames at the receiving end.
fn arrived(sink: &Sink, expected: u64) -> SinkCounts {
    let start = Instant::now();
    loop {
        let counts = sink.counts().unwrap();
        if counts.frames >= expected || start.elapsed() > Duration::from_secs(2) {
            return counts;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sum of `count` numbers from `first`, modulo 2^64.
fn sum(first: u64, count: u64) -> u64 {
    let (first, count) = (u128::from(first), u128::from(count));
    (count * first + count * (count - 1) / 2) as u64
}

#[test]
fn root_full_speed_is_counted_to_the_frame() {
    if !require_root("root_full_speed_is_counted_to_the_frame") {
        return;
    }
    let _alone = alone();
    for size_on_wire in [64, 1518] {
        let bed = Testbed::new().unwrap();
        let sink = sink(&bed, 0);
        let duration = Some(Duration::from_secs(1));
        let options = GenOptions {
            sizes: size_on_wire.into(),
            duration,
            cpus: vec![0],
            ..GenOptions::default()
        };
        let report = send(&bed, &options).unwrap();
        let counts = arrived(&sink, report.sent);
        println!(
            "{size_on_wire} B: {:.2} Mpps {:.1} Gbit/s {report:?}",
            report.mpps(),
            report.gbps()
        );
        assert_eq!(report.how, How::LiveFrames);
        assert_eq!(report.counted_by, "veth tx_queue_*_xdp_xmit");
        assert_eq!(counts.frames, report.sent);
        assert_eq!(report.attempted, report.sent + report.refused);
        assert_eq!(counts.bytes, report.sent * u64::from(size_on_wire - 4));
        assert_eq!(report.bytes, report.sent * u64::from(size_on_wire));
        assert_eq!((counts.foreign, counts.number_lowest), (0, 0));
        if report.refused == 0 {
            assert_eq!(counts.number_highest, report.sent - 1);
            assert_eq!(counts.number_sum, sum(0, report.sent));
            assert_eq!(counts.jumps, 0);
        }
        assert!(report.sent > 100_000, "slow beyond any excuse: {report:?}");
    }
}

#[test]
fn root_a_fixed_number_is_tried_and_numbered_without_gap() {
    if !require_root("root_a_fixed_number_is_tried_and_numbered_without_gap") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::new().unwrap();
    let sink = sink(&bed, 0);
    let (mut expected, mut number_sum) = (0, 0u64);
    for (frames, first_number) in [(1, 7), (63, 8), (65, 71), (100_000, 136), (0, 100_136)] {
        let frames_max = Some(frames);
        let rate = Rate::Pps(2_000_000.0);
        let options = GenOptions {
            frames: frames_max,
            first_number,
            rate,
            cpus: vec![0],
            ..GenOptions::default()
        };
        let report = send(&bed, &options).unwrap();
        assert_eq!((report.attempted, report.refused), (frames, 0));
        expected += frames;
        number_sum += if frames == 0 { 0 } else { sum(first_number, frames) };
    }
    let counts = arrived(&sink, expected);
    assert_eq!(counts.frames, expected);
    assert_eq!(counts.number_sum, number_sum);
    assert_eq!((counts.number_lowest, counts.number_highest), (7, 100_135));
    assert_eq!((counts.jumps, counts.foreign), (0, 0));
}

#[test]
fn root_threads_number_frames_without_gap_or_double_and_no_flow_repeats() {
    let test = "root_threads_number_frames_without_gap_or_double_and_no_flow_repeats";
    if !require_root(test) {
        return;
    }
    let _alone = alone();
    for engine in [GenEngine::LiveFrames, GenEngine::AfPacket] {
        let bed = Testbed::new().unwrap();
        let sink = sink(&bed, 400_000);
        let (frames, flows, threads) = (Some(300_007), Flows::Multi, 3);
        let rate = Rate::Pps(400_000.0);
        let options = GenOptions {
            engine,
            frames,
            flows,
            rate,
            threads,
            first_number: 11,
            ..GenOptions::default()
        };
        let report = send(&bed, &options).unwrap();
        assert_eq!(report.attempted, 300_007, "{report:?}");
        // The threads share the rate. Only the burst that the token bucket allows is sent faster.
        assert!(report.duration >= Duration::from_millis(650), "{report:?}");
        let counts = arrived(&sink, report.sent);
        // Each number came once: there are as many frames as numbers, each frame has its own flow, and the sum of the
        // numbers is right.
        assert_eq!((counts.frames, counts.foreign), (report.sent, 0), "{counts:?}");
        assert_eq!((counts.flows, counts.flows_full), (report.sent, 0), "{counts:?}");
        assert!(counts.number_lowest >= 11 && counts.number_highest <= 300_017, "{counts:?}");
        // With several senders and one receiving queue, frames may be refused on a busy machine.
        if report.refused == 0 {
            assert_eq!(counts.number_sum, sum(11, 300_007));
        }
    }
    let bed = Testbed::new().unwrap();
    let wrong = |threads, cpus| GenOptions { threads, cpus, ..GenOptions::default() };
    for options in [wrong(0, vec![]), wrong(49, vec![]), wrong(2, vec![0]), wrong(1, vec![0, 1])] {
        assert!(matches!(send(&bed, &options), Err(Error::Option { .. })), "{options:?}");
    }
}

#[test]
fn root_bytes_of_a_mix_that_was_refused_in_part_are_counted_by_the_link() {
    let test = "root_bytes_of_a_mix_that_was_refused_in_part_are_counted_by_the_link";
    if !require_root(test) {
        return;
    }
    let _alone = alone();
    let bed = Testbed::builder().gro(true).build().unwrap();
    thread_of_its_own(&bed);
    let rx_bytes = || {
        let table = bed.rx.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
        let line = table.unwrap();
        let line = line.lines().find_map(|l| l.trim().strip_prefix(&format!("{}:", bed.rx.iface)));
        line.unwrap().split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let before = rx_bytes();
    let sizes = Sizes::mix(&IMIX).unwrap();
    let frames = Some(1_000_000);
    let options = GenOptions { sizes, frames, cpus: vec![0], ..GenOptions::default() };
    let report = send(&bed, &options).unwrap();
    println!("{report:?}");
    assert_eq!(report.sent + report.refused, 1_000_000);
    assert_eq!(report.bytes, rx_bytes() - before + 4 * report.sent);
}

#[test]
fn root_threads_at_full_speed_are_counted_to_the_frame() {
    if !require_root("root_threads_at_full_speed_are_counted_to_the_frame") {
        return;
    }
    let _alone = alone();
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    // With one queue, both threads use it and could race for its counter. With two, each thread has its own.
    for queues in [1, 2] {
        let bed = Testbed::builder().queues(queues).build().unwrap();
        // The sink's counters are per CPU, and only the softirq of that CPU writes them.
        let sink = sink(&bed, 0);
        let duration = Some(Duration::from_millis(500));
        let cpus = if cpus > 1 { vec![0, 1] } else { Vec::new() };
        let options = GenOptions { duration, threads: 2, cpus, ..GenOptions::default() };
        let report = send(&bed, &options).unwrap();
        // By then, any frame that `sent` leaves out would have arrived as well.
        thread::sleep(Duration::from_millis(200));
        let counts = arrived(&sink, report.sent);
        println!("{queues} queues: {:.2} Mpps {report:?}", report.mpps());
        assert_eq!(report.how, How::LiveFrames);
        assert_eq!((counts.frames, counts.foreign), (report.sent, 0), "{report:?}");
        assert_eq!(counts.bytes, report.sent * 60);
        assert_eq!(report.attempted, report.sent + report.refused);
        assert!(report.sent > 10_000, "slow beyond any excuse: {report:?}");
    }
}

#[test]
fn root_overload_is_refused_and_counted_to_the_frame() {
    if !require_root("root_overload_is_refused_and_counted_to_the_frame") {
        return;
    }
    let _alone = alone();
    // The receiving end's network stack, in a separate thread, is slower than the sender.
    let bed = Testbed::builder().gro(true).build().unwrap();
    thread_of_its_own(&bed);
    let before = received(&bed);
    let frames = Some(2_000_000);
    let flows = Flows::Multi;
    let options = GenOptions { frames, flows, cpus: vec![0], ..GenOptions::default() };
    let report = send(&bed, &options).unwrap();
    println!("stack behind: {:.2} Mpps {report:?}", report.mpps());
    assert_eq!(report.attempted, 2_000_000);
    assert_eq!(report.sent + report.refused, 2_000_000);
    let begin = Instant::now();
    while received(&bed) - before < report.sent && begin.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(2));
    }
    // By then, any frame that `sent` leaves out would have arrived as well.
    thread::sleep(Duration::from_millis(100));
    assert_eq!(received(&bed) - before, report.sent);
}

/// Moves NAPI of the receiving end from the sender's CPU into a kernel thread.
fn thread_of_its_own(bed: &Testbed) {
    let end = &bed.rx;
    let switch = format!("echo 1 > /sys/class/net/{}/threaded", end.iface);
    // `ip netns exec` mounts the namespace's own /sys.
    let args = ["netns", "exec", &end.netns, "sh", "-c", &switch];
    assert!(Command::new("ip").args(args).status().unwrap().success());
}

/// Packets that the receiving interface has counted.
fn received(bed: &Testbed) -> u64 {
    bed.rx
        .run(|| {
            let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let line = text.lines().find(|line| line.contains(&bed.rx.iface)).unwrap();
            line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap()
        })
        .unwrap()
}

#[test]
fn root_flows_are_as_many_as_asked_for() {
    if !require_root("root_flows_are_as_many_as_asked_for") {
        return;
    }
    let _alone = alone();
    let rate = Rate::Pps(1_000_000.0);
    for (flows, frames, expected) in [
        (Flows::Single, 10_000, 1),
        (Flows::N(1000), 100_000, 1000),
        (Flows::Multi, 1_100_000, 1_100_000),
    ] {
        let bed = Testbed::new().unwrap();
        let sink = sink(&bed, 1_200_000);
        let options = GenOptions { flows, rate, frames: Some(frames), ..GenOptions::default() };
        let report = send(&bed, &options).unwrap();
        let counts = arrived(&sink, report.sent);
        assert_eq!((counts.frames, counts.flows_full), (report.sent, 0));
        // With a flow for each frame, the flows of refused frames are missing.
        let refused = if flows == Flows::Multi { report.refused } else { 0 };
        assert_eq!(counts.flows, expected - refused, "{flows:?}");
    }
}

#[test]
fn root_a_rate_is_kept() {
    if !require_root("root_a_rate_is_kept") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::new().unwrap();
    let sink = sink(&bed, 0);
    let mut expected = 0;
    for rate in [Rate::Pps(100_000.0), Rate::Bps(51_200_000.0), Rate::Pps(100.0)] {
        let duration = Some(Duration::from_secs(1));
        let options = GenOptions { rate, duration, ..GenOptions::default() };
        let report = send(&bed, &options).unwrap();
        expected += report.sent;
        assert_eq!((report.refused, arrived(&sink, expected).frames), (0, expected));
        let pps = report.sent as f64 / report.duration.as_secs_f64();
        let asked = if rate == Rate::Pps(100.0) { 100.0 } else { 100_000.0 };
        println!("{rate:?}: {pps:.1} pps {report:?}");
        // This holds on a busy machine too, because the report states the time that the generator gave up.
        let all = report.attempted as f64 + report.given_up.as_secs_f64() * asked;
        assert!((all - asked).abs() <= 1.0, "{rate:?}: {report:?}");
        assert!(pps < asked * 1.02, "{rate:?}: {pps}");
    }
}

#[test]
fn root_the_fallback_is_exact_and_makes_the_same_frames() {
    if !require_root("root_the_fallback_is_exact_and_makes_the_same_frames") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::new().unwrap();
    let sink = sink(&bed, 60_000);
    for size_on_wire in [64, 1518] {
        let before = sink.counts().unwrap();
        let options = GenOptions {
            sizes: size_on_wire.into(),
            flows: Flows::Multi,
            frames: Some(50_000),
            engine: GenEngine::AfPacket,
            ..GenOptions::default()
        };
        let report = send(&bed, &options).unwrap();
        let counts = arrived(&sink, before.frames + report.sent);
        println!("AF_PACKET {size_on_wire} B: {:.2} Mpps {report:?}", report.mpps());
        assert_eq!((report.how, report.attempted), (How::AfPacket, 50_000));
        assert_eq!(report.why, None);
        assert_eq!(counts.frames - before.frames, report.sent);
        assert_eq!(counts.foreign, 0);
        if report.refused == 0 {
            assert_eq!(counts.number_sum - before.number_sum, sum(0, 50_000));
            assert_eq!(counts.flows, 50_000);
        }
    }
}

#[test]
fn root_a_peer_without_napi_is_named_with_its_remedy() {
    if !require_root("root_a_peer_without_napi_is_named_with_its_remedy") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::new().unwrap();
    let live =
        GenOptions { frames: Some(1000), engine: GenEngine::LiveFrames, ..GenOptions::default() };
    let error = send(&bed, &live).unwrap_err();
    assert!(matches!(error, Error::PeerNotReady { .. }), "{error}");
    let (netns, iface) = (&bed.rx.netns, &bed.rx.iface);
    let remedy = format!("ip netns exec {netns} ethtool -K {iface} gro on");
    assert!(error.to_string().contains(&remedy), "{error}");

    let before = received(&bed);
    let auto = GenOptions { engine: GenEngine::Auto, ..live };
    let report = send(&bed, &auto).unwrap();
    assert_eq!((report.how, report.attempted, report.sent), (How::AfPacket, 1000, 1000));
    assert!(report.why.unwrap().contains(&remedy));
    assert_eq!(received(&bed) - before, 1000);
}

#[test]
fn root_jumbo_frames_go_by_packet_socket_and_too_long_ones_are_errors() {
    if !require_root("root_jumbo_frames_go_by_packet_socket_and_too_long_ones_are_errors") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::builder().mtu(9000).build().unwrap();
    let sink = sink(&bed, 0);
    let with = |size_on_wire, engine| GenOptions {
        sizes: Sizes::from(size_on_wire),
        engine,
        frames: Some(1000),
        rate: Rate::Pps(100_000.0),
        ..GenOptions::default()
    };
    let largest = generator::LIVE_SIZE_MAX;
    for (size, how) in
        [(largest, How::LiveFrames), (largest + 1, How::AfPacket), (9018, How::AfPacket)]
    {
        let before = sink.counts().unwrap();
        let report = send(&bed, &with(size, GenEngine::Auto)).unwrap();
        let counts = arrived(&sink, before.frames + report.sent);
        assert_eq!((report.how, report.sent), (how, 1000), "{size}: {report:?}");
        assert_eq!(report.why.is_some(), how == How::AfPacket);
        assert_eq!(counts.bytes - before.bytes, 1000 * u64::from(size - 4));
    }
    for (size, engine, limit) in [
        (9019, GenEngine::Auto, "9018"),
        (largest + 1, GenEngine::LiveFrames, "3412"),
        (63, GenEngine::Auto, "64"),
    ] {
        let error = send(&bed, &with(size, engine)).unwrap_err().to_string();
        assert!(error.contains(limit), "{error}");
    }
}

#[test]
fn root_what_cannot_work_says_what_to_do() {
    if !require_root("root_what_cannot_work_says_what_to_do") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::new().unwrap();
    let never = AtomicBool::new(false);
    let (missing, down) = bed
        .tx
        .run(|| {
            let options = GenOptions::default();
            (generator::run("nope0", &options, &never), generator::run("lo", &options, &never))
        })
        .unwrap();
    assert!(missing.unwrap_err().to_string().contains("ip link"));
    assert!(down.unwrap_err().to_string().contains("ip link set lo up"));
    let none = GenOptions { flows: Flows::N(0), ..GenOptions::default() };
    assert!(matches!(send(&bed, &none), Err(Error::Option { option: "flows", .. })));
    let still = GenOptions { rate: Rate::Pps(0.0), ..GenOptions::default() };
    assert!(matches!(send(&bed, &still), Err(Error::Option { option: "rate", .. })));
    let far = GenOptions { cpus: vec![1000], ..GenOptions::default() };
    assert!(matches!(send(&bed, &far), Err(Error::Cpu { cpu: 1000, .. })));
}

#[test]
fn root_the_stop_flag_ends_an_endless_run() {
    if !require_root("root_the_stop_flag_ends_an_endless_run") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::new().unwrap();
    let sink = sink(&bed, 0);
    let stop = AtomicBool::new(false);
    let options = GenOptions { rate: Rate::Pps(50_000.0), ..GenOptions::default() };
    let report = thread::scope(|scope| {
        let sender = scope.spawn(|| bed.tx.run(|| generator::run(&bed.tx.iface, &options, &stop)));
        thread::sleep(Duration::from_millis(200));
        stop.store(true, Relaxed);
        let asked = Instant::now();
        let report = sender.join().unwrap().unwrap().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2));
        report
    });
    assert_eq!(arrived(&sink, report.sent).frames, report.sent);
}

#[test]
fn root_both_engines_make_the_template_byte_by_byte() {
    if !require_root("root_both_engines_make_the_template_byte_by_byte") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::builder().gro(true).build().unwrap();
    let listener = bed.rx.run(|| listen(bed.rx.ifindex)).unwrap();
    for (engine, how) in
        [(GenEngine::LiveFrames, How::LiveFrames), (GenEngine::AfPacket, How::AfPacket)]
    {
        for (size_on_wire, stamp, flow_count, flows) in
            [(64, true, 0, Flows::Multi), (512, false, 3, Flows::N(3))]
        {
            let first_number = (1 << 32) - 10;
            let options = GenOptions {
                sizes: size_on_wire.into(),
                stamp,
                flows,
                first_number,
                engine,
                // Each live frame occupies a page, so a socket's receive buffer has space for only a few.
                frames: Some(25),
                rate: Rate::Pps(20_000.0),
                ..GenOptions::default()
            };
            let report = send(&bed, &options).unwrap();
            assert_eq!((report.how, report.sent), (how, 25));
            let bytes = size_on_wire as usize - 4;
            let template = Template::new(bytes, flow_count, SOURCE_MAC, DESTINATION_MAC);
            for number in first_number..first_number + 25 {
                let mut got = receive(&listener);
                let stamped = u64::from_be_bytes(got[STAMP_AT..STAMP_AT + 8].try_into().unwrap());
                assert_eq!(stamped != 0, stamp);
                got[STAMP_AT..STAMP_AT + 8].fill(0);
                assert_eq!(number_of(&got), Some(number));
                assert_eq!(got, template.frame(number), "{how:?} {number}");
            }
        }
    }
}

#[test]
fn root_both_engines_make_addressed_frames_byte_by_byte() {
    if !require_root("root_both_engines_make_addressed_frames_byte_by_byte") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::builder().gro(true).build().unwrap();
    let listener = bed.rx.run(|| listen(bed.rx.ifindex)).unwrap();
    let ip = |text: &str| Some(text.parse::<IpAddr>().unwrap());
    let plain = Addressing {
        source_mac: [2, 0, 0, 0, 0, 7],
        destination_mac: [0xff; 6],
        vlans: vec![],
        source: None,
        destination: ip("10.9.8.7").unwrap(),
        source_port: None,
        destination_port: 5353,
        payload: None,
    };
    let payload = Some(Payload { bytes: b"a payload of an odd length".to_vec(), is_filled: true });
    let v6 = Addressing { destination: ip("2001:db8::9").unwrap(), ..plain.clone() };
    // A packet socket delivers the outer tag separately from the frame, so tags are compared in
    // another test.
    let mix = Sizes::mix(&[(128, 3), (600, 1), (1518, 1)]).expect("a mix");
    let cases = [
        plain.clone(),
        Addressing { source: ip("10.1.1.1"), ..plain.clone() },
        Addressing { source_port: Some(77), ..plain.clone() },
        Addressing { payload: payload.clone(), ..plain.clone() },
        v6.clone(),
        Addressing { payload, source: ip("2001:db8::1"), source_port: Some(5), ..v6 },
    ];
    for addressing in cases {
        for (engine, how) in
            [(GenEngine::LiveFrames, How::LiveFrames), (GenEngine::AfPacket, How::AfPacket)]
        {
            for sizes in [Sizes::from(99), mix.clone()] {
                let flows = addressing.flows_max().min(3) as u32;
                let stamp = addressing.payload.is_none();
                let options = GenOptions {
                    sizes: sizes.clone(),
                    stamp,
                    flows: Flows::N(flows),
                    first_number: (1 << 32) - 10,
                    engine,
                    frames: Some(25),
                    rate: Rate::Pps(20_000.0),
                    addressing: Some(addressing.clone()),
                    ..GenOptions::default()
                };
                let report = send(&bed, &options).unwrap();
                assert_eq!((report.how, report.sent), (how, 25));
                for number in options.first_number..options.first_number + 25 {
                    let got = receive(&listener);
                    let datagrams = Datagrams::new(&addressing, got.len());
                    let at = datagrams.form().payload_at + 8;
                    let stamped = match stamp {
                        true => u64::from_be_bytes(got[at..at + 8].try_into().unwrap()),
                        false => 0,
                    };
                    assert_eq!(stamped != 0, stamp);
                    let mut expected = datagrams.blank().to_vec();
                    datagrams.write(
                        &mut expected,
                        (number % u64::from(flows)) as u32,
                        number,
                        stamped,
                    );
                    assert_eq!(got, expected, "{how:?} {number} {addressing:?}");
                }
            }
        }
    }
}

#[test]
fn root_without_bpf_rights_it_falls_back_and_says_why() {
    if !require_root("root_without_bpf_rights_it_falls_back_and_says_why") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::new().unwrap();
    let sink = sink(&bed, 0);
    let options = GenOptions { frames: Some(1000), ..GenOptions::default() };
    let report = bed.tx.run(|| {
        keep_only(1 << CAP_NET_RAW);
        generator::run(&bed.tx.iface, &options, &AtomicBool::new(false))
    });
    let report = report.unwrap().unwrap();
    assert_eq!((report.how, report.sent), (How::AfPacket, 1000));
    assert!(report.why.unwrap().contains("CAP_BPF"));
    assert_eq!(arrived(&sink, 1000).frames, 1000);

    let error = bed.tx.run(|| {
        keep_only(0);
        generator::run(&bed.tx.iface, &options, &AtomicBool::new(false))
    });
    assert!(error.unwrap().unwrap_err().to_string().contains("CAP_NET_RAW"));
}

/// `linux/capability.h`.
const CAP_NET_RAW: u32 = 13;

/// Gives up all capabilities of this thread except these. The thread ends soon.
fn keep_only(capabilities: u32) {
    // linux/capability.h, version 3: effective, permitted, inheritable; low words, then high.
    let header = [0x2008_0522u32, 0];
    let data = [capabilities, capabilities, 0, 0, 0, 0];
    // SAFETY: `header` and `data` have the layout of version 3, are readable, and are not kept.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn root_an_interface_that_goes_away_is_found_out() {
    if !require_root("root_an_interface_that_goes_away_is_found_out") {
        return;
    }
    let _alone = alone();
    let bed = Testbed::new().unwrap();
    let sink = sink(&bed, 0);
    let options = GenOptions { rate: Rate::Pps(10_000.0), ..GenOptions::default() };
    let result = thread::scope(|scope| {
        let sender = scope.spawn(|| send(&bed, &options));
        while sink.counts().unwrap().frames == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        let args = ["-n", &bed.tx.netns, "link", "delete", &bed.tx.iface];
        assert!(Command::new("ip").args(args).status().unwrap().success());
        sender.join().unwrap()
    });
    assert!(matches!(result, Err(Error::NoInterface { .. })), "{result:?}");
}

/// A packet socket that receives all frames of an interface in this thread's namespace.
fn listen(ifindex: u32) -> OwnedFd {
    let everything = 3u16.to_be(); // ETH_P_ALL
    // SAFETY: takes no pointers; the result is checked before it is used.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
    assert!(fd >= 0);
    // SAFETY: `fd` is a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: sockaddr_ll is made of integers and an array of them: all zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = everything;
    address.sll_ifindex = ifindex.cast_signed();
    let patience = libc::timeval { tv_sec: 5, tv_usec: 0 };
    // SAFETY: both structs are whole, of the type the call expects, and readable for the length
    // given; neither is kept.
    let done = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        ) == 0
            && libc::bind(
                fd,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            ) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
    socket
}

/// The next received frame.
fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut frame = vec![0u8; 2048];
    // SAFETY: `frame` is writable for the length given, and not kept.
    let bytes =
        unsafe { libc::recv(socket.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
    assert!(bytes > 0, "no frame in time: {}", std::io::Error::last_os_error());
    frame.truncate(bytes as usize);
    frame
}
