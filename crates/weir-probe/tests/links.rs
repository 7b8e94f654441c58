//! Interfaces that are missing, come, go down and vanish, in a network namespace of the test's own.

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_capture::af_packet::AfPacket;
use weir_capture::kernel::netns::NetnsName;
use weir_capture::{Feed, Setup, Source, netns};
use weir_lab::Testbed;
use weir_lab::testbed::{End, require_root};
use weir_probe::core::Event;
use weir_probe::{LinkName, Opener, Probe, SourceSpec, Update, Wants};
use weir_ring::{Poll, Reader, Start, Tally};

use common::{LIMIT, wait_for};

/// Runs `ip` in this namespace.
fn ip(netns: &str, args: &str) {
    let status = Command::new("ip").args(["-n", netns]).args(args.split(' ')).status();
    assert!(status.expect("ip").success(), "ip -n {netns} {args}");
}

/// A source that captures from `follow0` in this namespace, and waits for this interface when it is missing.
fn followed(netns: &str) -> SourceSpec {
    let open: Opener = Arc::new({
        let netns = NetnsName::named(netns);
        move |feeds: Vec<Feed>| {
            let setup = Setup {
                feeds,
                ring_bytes: 8 << 20,
                promiscuous: false,
                may_change: true,
                ..Setup::default()
            };
            netns::open(&netns, &setup, |setup| {
                Ok(Box::new(AfPacket::open("follow0", setup.clone())?) as Box<dyn Source>)
            })
        }
    });
    let link = Some(LinkName { netns: Some(netns.into()), iface: Some("follow0".into()) });
    SourceSpec { name: "follow0".into(), open, link, follows: true, cpus: None }
}

/// Makes `follow0` and its peer, both up.
fn make_links(end: &End) {
    ip(&end.netns, "link add follow0 type veth peer name follow1");
    ip(&end.netns, "link set follow1 up");
    // So far `follow0` exists, but is down.
    ip(&end.netns, "link set follow0 up");
}

/// Sends ten frames to `follow0`.
fn send_ten(end: &End) {
    End { iface: "follow1".into(), ..end.clone() }.wait_for_carrier().unwrap();
    ip(&end.netns, "address add 192.0.2.1/24 dev follow1");
    let send = || -> std::io::Result<()> {
        let socket = std::net::UdpSocket::bind("192.0.2.1:0")?;
        socket.set_broadcast(true)?;
        for _ in 0..10 {
            socket.send_to(b"weir", "192.0.2.255:9")?;
        }
        Ok(())
    };
    end.run(send).unwrap().unwrap();
}

#[test]
fn root_an_interface_is_waited_for_and_taken_up_again() {
    if !require_root("root_an_interface_is_waited_for_and_taken_up_again") {
        return;
    }
    let bed = Testbed::new().expect("a testbed");
    let netns = bed.rx.netns.clone();
    let (probe, events) = Probe::new().unwrap();
    let (source, own) = probe.open(followed(&netns), vec![Wants::default()]).unwrap();
    wait_for(&events, |event| matches!(event, Event::Missing(..)).then_some(()));
    let consumer = probe.add_consumer(64).unwrap();
    probe.attach(consumer.id, own[0]).unwrap();
    probe.start(source).unwrap();
    for _ in 0..2 {
        make_links(&bed.rx);
        wait_for(&events, |event| matches!(event, Event::CameBack(_)).then_some(()));
        let Some(Update::Joined(joined)) = consumer.wait_for_update(LIMIT) else {
            panic!("it did not join")
        };
        ip(&netns, "link set follow0 down");
        wait_for(&events, |event| matches!(event, Event::Down(_)).then_some(()));
        ip(&netns, "link set follow0 up");
        wait_for(&events, |event| matches!(event, Event::Up(_)).then_some(()));
        send_ten(&bed.rx);
        let mut reader = Reader::new(&joined.rings[0], Start::Oldest).unwrap();
        let (begin, mut tally) = (Instant::now(), Tally::default());
        while tally.frames < 10 {
            assert!(begin.elapsed() < LIMIT, "{} frames", tally.frames);
            let polled = reader.count_in_place(&mut tally, 1000).unwrap();
            assert!(!matches!(polled, Poll::Closed | Poll::Lapped(_)), "{polled:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        ip(&netns, "link delete follow0");
        wait_for(&events, |event| matches!(event, Event::Vanished(..)).then_some(()));
        let ledger = wait_for(&events, |event| match event {
            Event::FeedClosed(_, feed, ledger) if feed == joined.feed => ledger,
            _ => None,
        });
        while !matches!(reader.count_in_place(&mut tally, 1000).unwrap(), Poll::Closed) {
            assert!(begin.elapsed() < LIMIT, "its ring is open");
        }
        assert!(ledger.closes() && ledger.captured == tally.frames, "{ledger:?}");
        let left = consumer.wait_for_update(LIMIT);
        assert!(matches!(left, Some(Update::Left(feed, _)) if feed == joined.feed));
    }
    probe.stop();
}

/// Number of threads of this process that watch links.
fn watching() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc").flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "weir-links").count()
}

#[test]
fn root_a_network_namespace_that_is_made_anew_is_followed_and_let_go() {
    if !require_root("root_a_network_namespace_that_is_made_anew_is_followed_and_let_go") {
        return;
    }
    let bed = Testbed::new().expect("a testbed");
    let (probe, events) = Probe::new().unwrap();
    let (source, own) = probe.open(followed(&bed.rx.netns), vec![Wants::default()]).unwrap();
    let consumer = probe.add_consumer(64).unwrap();
    probe.attach(consumer.id, own[0]).unwrap();
    probe.start(source).unwrap();
    for life in 0..3 {
        if life > 0 {
            // The namespace is missing for a while. Then there is another one of the same name.
            for (command, pause) in [("delete", 300), ("add", 0)] {
                let mut netns = Command::new("ip");
                netns.args(["netns", command, &bed.rx.netns]);
                assert!(netns.status().expect("ip").success(), "{command}");
                std::thread::sleep(Duration::from_millis(pause * life));
            }
            wait_for(&events, |event| matches!(event, Event::Vanished(..)).then_some(()));
            assert!(matches!(consumer.wait_for_update(LIMIT), Some(Update::Left(..))));
        }
        make_links(&bed.rx);
        wait_for(&events, |event| matches!(event, Event::CameBack(_)).then_some(()));
        let Some(Update::Joined(joined)) = consumer.wait_for_update(LIMIT) else {
            panic!("it did not join")
        };
        send_ten(&bed.rx);
        let mut reader = Reader::new(&joined.rings[0], Start::Oldest).unwrap();
        let (begin, mut tally) = (Instant::now(), Tally::default());
        while tally.frames < 10 {
            assert!(begin.elapsed() < LIMIT, "life {life}: {} frames", tally.frames);
            reader.count_in_place(&mut tally, 1000).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(watching(), 1);
    probe.close(source).unwrap();
    let begin = Instant::now();
    while watching() > 0 {
        assert!(
            begin.elapsed() < LIMIT,
            "the namespace of a source that is closed is still watched"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    // The namespace is watched again for the next source.
    let (_, _) = probe.open(followed(&bed.rx.netns), vec![Wants::default()]).unwrap();
    assert_eq!(watching(), 1);
}
