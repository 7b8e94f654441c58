//! Captures without the right to load eBPF: the filter is classic BPF, and still runs in the kernel.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::frames::{CTAG, STAG, Sender, arp, ipv4, ipv6, tagged};
use common::tools::{bytes_of, read, statistics};
use common::{Run, bed, closes, folder, number, path, program, ready, settle, weir};
use weir_lab::testbed::Testbed;

/// `weir capture` of the bed's receiving end with CAP_NET_RAW and no other capability.
fn capture(bed: &Testbed, plain: &str, more: &[&str]) -> Run {
    let only_raw = "setpriv --bounding-set=-all,+net_raw --inh-caps=-all";
    let weir = env!("CARGO_BIN_EXE_weir");
    let mut command = program(&format!("{only_raw} {weir} capture {} {plain}", bed.rx.iface));
    command.args(more);
    Run::capture_by(&bed.rx, command)
}

/// Frames that `vlan 5 and udp` accepts, then frames that it does not accept.
fn assortment() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let priority = 0xe000;
    let wanted = vec![
        tagged(&ipv4(60), CTAG, 5),
        tagged(&ipv6(1514), CTAG, 5 | priority),
        tagged(&ipv4(61), STAG, 5),
    ];
    let others = vec![
        ipv4(62),
        tagged(&ipv4(63), CTAG, 6),
        tagged(&arp(), CTAG, 5),
        // Frames with two tags: the outer tag has another number, or is followed by a tag instead of UDP.
        tagged(&tagged(&ipv4(64), CTAG, 5), STAG, 7),
        tagged(&tagged(&ipv4(65), CTAG, 9), CTAG, 5),
    ];
    (wanted, others)
}

#[test]
fn root_with_cap_net_raw_alone_the_filter_is_in_the_kernel() {
    let test = "root_with_cap_net_raw_alone_the_filter_is_in_the_kernel";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let dir = folder();
    let (wanted, others) = assortment();
    for engine in ["--engine af_packet", ""] {
        let bed = bed();
        let (file, name) = path(&dir, "kept.pcapng");
        let filter = ["--filter", "vlan 5 and udp"];
        let run = capture(&bed, &format!("{engine} --json --write {name}"), &filter);
        let sender = Sender::new(&bed.tx);
        for frame in wanted.iter().chain(&others).chain(&wanted) {
            sender.send(frame);
        }
        settle();
        let json = run.stop().expect(0).json();
        closes(&json);
        assert_eq!(json["engine"], "af_packet", "{json}");
        let feed = &json["feeds"][0];
        assert_eq!(feed["filter_location"], "hook, classic", "{json}");
        for counts in [&json, &json["sources"][0], feed] {
            let count = |name| number(counts, name) as usize;
            let found = (count("offered"), count("filtered"), count("captured"));
            assert_eq!(found, (2 * wanted.len(), 0, 2 * wanted.len()), "{json}");
            assert_eq!(counts["filtered_uncounted"], true, "{json}");
        }
        let (_, kept) = read(&file);
        assert_eq!(bytes_of(&kept), [&wanted[..], &wanted].concat(), "{engine}");
        // The file does not state a number of received frames, because nobody counted them.
        let [statistics] = &statistics(&file)[..] else { panic!("one interface") };
        assert_eq!((statistics.received, statistics.os_drops), (None, Some(0)));
    }
}

#[test]
fn root_the_report_says_that_filtered_frames_are_not_counted() {
    let test = "root_the_report_says_that_filtered_frames_are_not_counted";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let bed = bed();
    let run = capture(&bed, "--engine af_packet", &["--filter", "ip6"]);
    let sender = Sender::new(&bed.tx);
    [ipv4(60), ipv6(80)].iter().for_each(|frame| sender.send(frame));
    settle();
    let text = run.stop().expect(0).text();
    for words in [
        "filter 'ip6', applied in the kernel, by classic BPF, before the copy",
        "nobody counts",
        "uncounted\n",
        "offered = filtered + captured + drops, of the frames that passed the socket's filter",
    ] {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
}

#[test]
fn root_a_classic_filter_changes_under_traffic() {
    let test = "root_a_classic_filter_changes_under_traffic";
    let Some(_alone) = ready(test, &["setpriv"]) else { return };
    let (bed, dir) = (bed(), folder());
    let ((_, control), (file, name)) = (path(&dir, "control"), path(&dir, "kept.pcapng"));
    let args = format!("--engine af_packet --json --control {control} --write {name}");
    let run = capture(&bed, &args, &["--filter", "udp"]);
    let change = |filter: &str| {
        let mut command = weir(&format!("filter --control {control}"));
        command.arg(filter);
        Run::start(&bed.rx, command).end().expect(0);
    };
    let is_over = AtomicBool::new(false);
    // Each filter that is set below accepts IPv6 with a tag and without.
    let both = [ipv6(80), tagged(&ipv6(90), CTAG, 5)];
    let sent = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let sender = Sender::new(&bed.tx);
            let mut rounds = 0;
            while !is_over.load(Ordering::Acquire) {
                [&both[..], &[ipv4(60), arp()]].concat().iter().for_each(|f| sender.send(f));
                rounds += 1;
                thread::sleep(Duration::from_micros(200));
            }
            rounds
        });
        for _ in 0..6 {
            change("ip6 or (vlan 5 and ip6)");
            change("udp or arp or (vlan 5 and udp)");
        }
        change("ip6 or (vlan 5 and ip6)");
        is_over.store(true, Ordering::Release);
        sending.join().expect("the sender")
    });
    settle();
    let json = run.stop().expect(0).json();
    closes(&json);
    assert_eq!(json["feeds"][0]["filter_location"], "hook, classic", "{json}");
    assert_eq!(number(&json["feeds"][0], "changes"), 13, "{json}");
    let kept = bytes_of(&read(&file).1);
    let count = |frame: &Vec<u8>| kept.iter().filter(|kept| *kept == frame).count();
    assert_eq!(count(&both[0]), sent, "IPv6, which all of the filters take: {json}");
    for some in [ipv4(60), arp()] {
        assert!((1..sent).contains(&count(&some)), "{} of {sent}: {json}", count(&some));
    }
    // The first filter does not accept the tagged frame.
    assert!((1..=sent).contains(&count(&both[1])), "{} of {sent}: {json}", count(&both[1]));
}
