//! Interfaces by pattern: the probe's events about them.

mod common;

use std::process::Command;

use weir_capture::auto::EngineRequest;
use weir_capture::engines::declaration::Target;
use weir_capture::interface::LinkPattern;
use weir_capture::{Setup, SourceEvent};
use weir_lab::Testbed;
use weir_lab::testbed::require_root;
use weir_probe::core::Event;
use weir_probe::{Probe, SourceSpec, Wants};

use common::wait_for;

#[test]
fn root_the_probe_tells_of_interfaces_and_of_their_ledgers() {
    if !require_root("root_the_probe_tells_of_interfaces_and_of_their_ledgers") {
        return;
    }
    let bed = Testbed::new().expect("a testbed");
    let netns = bed.rx.netns.clone();
    let pattern = LinkPattern::parse("pat*").expect("a pattern");
    let target = Target::Pattern { netns: Some((&netns).into()), pattern };
    let spec = SourceSpec::new("pat*", move |feeds| {
        let setup = Setup {
            feeds,
            ring_bytes: 8 << 20,
            promiscuous: false,
            may_change: true,
            ..Setup::default()
        };
        EngineRequest::default().open(&target, &setup)
    });
    let (probe, events) = Probe::new().unwrap();
    let (source, own) = probe.open(spec, vec![Wants::default()]).unwrap();
    probe.start(source).unwrap();
    let (feed, _) = probe.feed_of(own[0]).unwrap();
    assert_eq!(probe.interfaces(feed).unwrap(), []);
    let ip = |args: &str| {
        let status = Command::new("ip").args(["-n", &netns]).args(args.split(' ')).status();
        assert!(status.expect("ip").success(), "ip -n {netns} {args}");
    };
    ip("link add pat0 type veth peer name other0");
    let pat0 = || "pat0".to_owned();
    for (args, wanted) in [
        ("link set other0 up", SourceEvent::Joined { iface: pat0() }),
        ("link set pat0 up", SourceEvent::Up { iface: pat0() }),
        ("link set pat0 down", SourceEvent::Down { iface: pat0() }),
    ] {
        ip(args);
        wait_for(&events, |event| match event {
            Event::Interface(of, told) if told == wanted => (of == source).then_some(()),
            _ => None,
        });
    }
    let lines = probe.interfaces(feed).unwrap();
    assert_eq!((lines.len(), lines[0].name.as_str(), lines[0].is_member), (1, "pat0", true));
    ip("link delete pat0");
    wait_for(&events, |event| {
        matches!(event, Event::Interface(_, SourceEvent::Left { iface }) if iface == "pat0")
            .then_some(())
    });
    probe.stop();
    let last = wait_for(&events, |event| match event {
        Event::Interfaces(_, of, lines) if of == feed => Some(lines),
        Event::FeedClosed(..) => panic!("the feed closed before its interfaces were told"),
        _ => None,
    });
    assert_eq!((last.len(), last[0].is_member, last[0].ledger.closes()), (1, false, true));
    wait_for(&events, |event| {
        matches!(event, Event::FeedClosed(_, of, _) if of == feed).then_some(())
    });
}
