use std::process::Command;

use proptest::prelude::*;

use super::*;

const PORT: u32 = 77;
const UP: u32 = libc::IFF_UP as u32;

/// A netlink message about a link, in the kernel's format.
fn message(kind: u16, link: &Link, number: u32, port: u32) -> Vec<u8> {
    let mut message = vec![0u8; HEADER_BYTES + IFINFO_BYTES];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[8..12].copy_from_slice(&number.to_ne_bytes());
    message[12..16].copy_from_slice(&port.to_ne_bytes());
    message[18..20].copy_from_slice(&link.arphrd.to_ne_bytes());
    message[20..24].copy_from_slice(&link.index.to_ne_bytes());
    message[24..28].copy_from_slice(&link.flags.to_ne_bytes());
    let mut add = |kind: u16, value: &[u8]| {
        message.extend(((ATTRIBUTE_BYTES + value.len()) as u16).to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    };
    add(libc::IFLA_MTU, &link.mtu.to_ne_bytes());
    add(libc::IFLA_IFNAME, &[link.name.as_bytes(), &[0]].concat());
    let bytes = message.len() as u32;
    message[0..4].copy_from_slice(&bytes.to_ne_bytes());
    message
}

fn done(number: u32) -> Vec<u8> {
    let mut done = vec![0u8; HEADER_BYTES + 4];
    let bytes = done.len() as u32;
    done[0..4].copy_from_slice(&bytes.to_ne_bytes());
    done[4..6].copy_from_slice(&(libc::NLMSG_DONE as u16).to_ne_bytes());
    done[8..12].copy_from_slice(&number.to_ne_bytes());
    done[12..16].copy_from_slice(&PORT.to_ne_bytes());
    done
}

fn link(index: u32, name: &str, flags: u32) -> Link {
    Link { index, name: name.to_owned(), flags, arphrd: libc::ARPHRD_ETHER, mtu: 1500 }
}

fn take(links: &mut Links, datagram: &[u8]) -> Vec<LinkEvent> {
    let mut events = Vec::new();
    links.take(datagram, PORT, &mut events).unwrap();
    events
}

#[test]
fn the_loopback_device_is_there_and_nothing_happens() {
    let mut watch = LinkWatch::open().unwrap();
    let lo = watch.links().find(|link| link.name == "lo").unwrap();
    assert_eq!((lo.index, lo.arphrd), (1, libc::ARPHRD_LOOPBACK));
    watch.events().unwrap();
}

#[test]
fn each_change_is_an_event() {
    let mut links = Links::default();
    let mut told = |kind, link: &Link| take(&mut links, &message(kind, link, 0, 0));
    let (down, up, other) = (link(5, "a", 0), link(5, "a", UP), link(5, "b", UP));
    let newlink = libc::RTM_NEWLINK;
    assert_eq!(told(newlink, &down), [LinkEvent::Appeared(down.clone())]);
    assert_eq!(told(newlink, &down), []);
    assert_eq!(told(newlink, &up), [LinkEvent::Up(up.clone())]);
    let renamed = LinkEvent::Renamed { link: other.clone(), from: "a".to_owned() };
    assert_eq!(told(newlink, &other), [renamed]);
    let longer = Link { mtu: 9000, ..other };
    assert_eq!(told(newlink, &longer), [LinkEvent::Changed(longer.clone())]);
    let tunnel = Link { arphrd: libc::ARPHRD_NONE, flags: 0, ..longer };
    let both = [LinkEvent::Changed(tunnel.clone()), LinkEvent::Down(tunnel.clone())];
    assert_eq!(told(newlink, &tunnel), both);
    assert_eq!(told(libc::RTM_DELLINK, &down), [LinkEvent::Gone(tunnel)]);
    assert_eq!(told(libc::RTM_DELLINK, &down), []);
}

#[test]
fn a_port_that_leaves_its_bridge_is_not_gone() {
    let mut links = Links::default();
    let port = link(5, "a", UP);
    take(&mut links, &message(libc::RTM_NEWLINK, &port, 0, 0));
    let mut left = message(libc::RTM_DELLINK, &port, 0, 0);
    left[HEADER_BYTES] = libc::AF_BRIDGE as u8;
    assert_eq!(take(&mut links, &left), []);
    assert!(links.known.contains_key(&5));
}

#[test]
fn a_notification_counts_more_than_a_dump_that_was_made_before() {
    let mut links = Links::default();
    take(&mut links, &message(libc::RTM_NEWLINK, &link(1, "old", UP), 0, 0));
    let number = links.begin_dump();
    let dumped = |link: &Link| message(libc::RTM_NEWLINK, link, number, PORT);
    take(&mut links, &message(libc::RTM_DELLINK, &link(2, "gone", UP), 0, 0));
    take(&mut links, &message(libc::RTM_NEWLINK, &link(3, "new", UP), 0, 0));
    // A notification has the port and the sequence number of the request that changed the link. One of the two
    // may equal that of our dump by chance, but not both.
    take(&mut links, &message(libc::RTM_NEWLINK, &link(4, "four", UP), number, PORT + 1));
    take(&mut links, &dumped(&link(2, "gone", UP)));
    take(&mut links, &dumped(&link(3, "new", 0)));
    assert_eq!(take(&mut links, &done(number)), [LinkEvent::Gone(link(1, "old", UP))]);
    let known: Vec<_> = links.known.into_values().collect();
    assert_eq!(known, [link(3, "new", UP), link(4, "four", UP)]);
}

#[test]
fn an_interrupted_dump_takes_nothing_away_and_is_made_again() {
    let mut links = Links::default();
    take(&mut links, &message(libc::RTM_NEWLINK, &link(1, "old", UP), 0, 0));
    let number = links.begin_dump();
    let mut end = done(number);
    end[6..8].copy_from_slice(&NLM_F_DUMP_INTR.to_ne_bytes());
    assert_eq!(take(&mut links, &end), []);
    assert!(links.must_dump && links.dump.is_none() && links.known.len() == 1);
}

#[test]
fn a_dump_that_fails_takes_nothing_away_and_is_made_again() {
    let mut links = Links::default();
    take(&mut links, &message(libc::RTM_NEWLINK, &link(1, "old", UP), 0, 0));
    let number = links.begin_dump();
    let mut end = done(number);
    end[16..20].copy_from_slice(&(-libc::ENOMEM).to_ne_bytes());
    // Events in the same datagram are not lost, whether they are before or after the failure.
    let before = message(libc::RTM_NEWLINK, &link(2, "before", UP), 0, 0);
    let behind = message(libc::RTM_NEWLINK, &link(3, "behind", UP), 0, 0);
    let mut events = Vec::new();
    let result = links.take(&[before, end, behind].concat(), PORT, &mut events);
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    let told: Vec<_> = events.iter().map(brief).collect();
    assert_eq!(told, [("appeared", "before"), ("appeared", "behind")]);
    assert!(links.wants_dump() && links.known.len() == 3);
}

/// If `events` fails after it has read some events, it returns these, and the next call returns the failure.
#[test]
fn root_a_failure_does_not_take_events_with_it() {
    in_new_netns(|| {
        let mut watch = LinkWatch::open().unwrap();
        ip("link add wa0 type veth peer name wb0");
        // The kernel refuses this kind of request. The answer has the dump's sequence number, so it ends
        // the dump.
        let number = watch.links.begin_dump();
        watch.socket.request_numbered(number, u16::MAX, libc::NLM_F_DUMP, &info(0)).unwrap();
        let events = watch.events().unwrap();
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!(watch.events().unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
        assert_eq!(watch.events().unwrap(), []);
        assert!(watch.links.dump.is_none() && !watch.links.must_dump);
    });
}

/// A change in the simulated kernel: the link of this index gets this name, these flags and this MTU, or is
/// removed.
#[derive(Clone, Debug)]
struct Made {
    index: u32,
    to: Option<(u8, bool, u32)>,
    /// The notification about the change is lost, and the kernel reports the loss.
    is_lost: bool,
    /// Before the change, the kernel writes the next part of the running dump.
    dump_first: bool,
    /// The part of the dump arrives after the notification, although the kernel wrote it before.
    is_swapped: bool,
}

fn made() -> impl Strategy<Value = Made> {
    let to = proptest::option::of((0u8..3, any::<bool>(), 1500u32..1502));
    (1u32..5, to, prop::bool::weighted(0.1), any::<bool>(), any::<bool>()).prop_map(
        |(index, to, is_lost, dump_first, is_swapped)| Made {
            index,
            to,
            is_lost,
            dump_first,
            is_swapped,
        },
    )
}

proptest! {
    /// For every order of dump parts and notifications, and with any reported losses, the known links are
    /// correct in the end, and the events add up to them.
    #[test]
    fn what_is_known_is_what_there_is(changes in proptest::collection::vec(made(), 0..60)) {
        let mut truth: BTreeMap<u32, Link> = BTreeMap::new();
        let mut links = Links::default();
        let mut told: BTreeMap<u32, Link> = BTreeMap::new();
        // Last index that the running dump has written; `None` if no dump is running.
        let mut at: Option<u32> = None;
        let mut events = Vec::new();
        let part = |links: &mut Links, truth: &BTreeMap<u32, Link>, at: &mut Option<u32>| {
            if links.must_dump && at.is_none() {
                links.begin_dump();
                *at = Some(0);
            }
            let (next, number) = (at.as_mut()?, links.dump.as_ref()?.number);
            *next += 1;
            let index = *next;
            if index < 5 {
                let is_there = truth.get(&index);
                let told = is_there.map(|link| message(libc::RTM_NEWLINK, link, number, PORT));
                return Some(told.unwrap_or_default());
            }
            *at = None;
            Some(done(number))
        };
        links.lost();
        for change in &changes {
            let dumped = if change.dump_first { part(&mut links, &truth, &mut at) } else { None };
            let mut datagrams = vec![dumped.unwrap_or_default()];
            let old = truth.remove(&change.index);
            if let Some((name, up, mtu)) = change.to {
                let flags = if up { UP } else { 0 };
                let link = Link { mtu, ..link(change.index, &format!("n{name}"), flags) };
                datagrams.push(message(libc::RTM_NEWLINK, &link, 0, 0));
                truth.insert(change.index, link);
            } else if let Some(old) = old {
                datagrams.push(message(libc::RTM_DELLINK, &old, 0, 0));
            }
            if change.is_lost {
                datagrams.truncate(1);
            }
            // The last part of a dump is not swapped: after it, the dump no longer runs beside notifications.
            if change.is_swapped && at.is_some() {
                datagrams.reverse();
            }
            for datagram in datagrams {
                links.take(&datagram, PORT, &mut events).unwrap();
            }
            if change.is_lost {
                links.lost();
            }
        }
        while let Some(datagram) = part(&mut links, &truth, &mut at) {
            links.take(&datagram, PORT, &mut events).unwrap();
        }
        prop_assert_eq!(&links.known, &truth);
        for event in events {
            match event {
                LinkEvent::Appeared(link) => prop_assert!(told.insert(link.index, link).is_none()),
                LinkEvent::Gone(link) => prop_assert_eq!(told.remove(&link.index), Some(link)),
                LinkEvent::Up(link)
                | LinkEvent::Down(link)
                | LinkEvent::Changed(link)
                | LinkEvent::Carrier(link)
                | LinkEvent::Renamed { link, .. } => {
                    prop_assert!(told.insert(link.index, link).is_some());
                }
            }
        }
        prop_assert_eq!(told, truth);
    }

    #[test]
    fn hostile_messages_are_no_links_or_some(
        cuts in proptest::collection::vec((0usize..200, any::<u8>()), 0..12),
        length in 0usize..200,
    ) {
        let mut links = Links::default();
        let number = links.begin_dump();
        let mut datagram = message(libc::RTM_NEWLINK, &link(1, "a", UP), number, PORT);
        datagram.extend(message(libc::RTM_NEWLINK, &link(2, "b", 0), 0, 0));
        datagram.extend(done(number));
        for (at, byte) in cuts {
            let at = at % datagram.len();
            datagram[at] = byte;
        }
        datagram.truncate(length);
        let _ = links.take(&datagram, PORT, &mut Vec::new());
        prop_assert!(links.known.len() <= 8);
    }
}

/// Runs `test` on a thread in a new network namespace.
fn in_new_netns(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: takes no pointers; only this thread moves, which ends with the test.
            let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
            assert_eq!(result, 0, "needs root: {}", io::Error::last_os_error());
            test();
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status().unwrap();
    assert!(status.success(), "ip {line}");
}

/// `ip -batch` with one line for each of `count` links.
fn ip_batch(count: u32, line: impl Fn(u32) -> String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: String = (0..count).map(|i| line(i) + "\n").collect();
    std::fs::write(file.path(), lines).unwrap();
    ip(&format!("-batch {}", file.path().display()));
}

/// The kind of an event, and the name of its link.
fn brief(event: &LinkEvent) -> (&'static str, &str) {
    match event {
        LinkEvent::Appeared(link) => ("appeared", &link.name),
        LinkEvent::Gone(link) => ("gone", &link.name),
        LinkEvent::Up(link) => ("up", &link.name),
        LinkEvent::Down(link) => ("down", &link.name),
        LinkEvent::Renamed { link, .. } => ("renamed", &link.name),
        LinkEvent::Changed(link) => ("changed", &link.name),
        LinkEvent::Carrier(link) => ("carrier", &link.name),
    }
}

#[test]
fn root_links_come_and_go() {
    in_new_netns(|| {
        let mut watch = LinkWatch::open().unwrap();
        assert_eq!(watch.links().count(), 1, "the loopback device");
        let mut after = |lines: &[&str], expected: &[(&str, &str)]| {
            lines.iter().for_each(|line| ip(line));
            watch.wait(Duration::from_secs(5)).unwrap();
            let events = watch.events().unwrap();
            let told: Vec<_> = events.iter().map(brief).collect();
            let mut sorted = told.clone();
            // The kernel may report the two ends of a pair in any order.
            sorted.sort_by_key(|&(_, name)| name);
            assert_eq!(sorted, expected, "{events:?}");
            events
        };
        let pair = [("appeared", "wa0"), ("appeared", "wb0")];
        let come = after(&["link add wa0 type veth peer name wb0"], &pair);
        let LinkEvent::Appeared(link) = &come[0] else { panic!("{come:?}") };
        assert_eq!((link.is_up(), link.is_ethernet(), link.mtu), (false, true, 1500));
        after(&["link set wa0 up"], &[("up", "wa0")]);
        after(
            &["link set wa0 down", "link set wa0 name wa1"],
            &[("down", "wa0"), ("renamed", "wa1")],
        );
        after(&["link delete wa1"], &[("gone", "wa1"), ("gone", "wb0")]);
        assert_eq!(watch.links().count(), 1);
    });
}

#[test]
fn root_what_is_lost_in_a_flood_is_found_by_a_dump() {
    in_new_netns(|| {
        ip_batch(3, |i| format!("link add old{i} type veth peer name older{i}"));
        let mut watch = LinkWatch::open().unwrap();
        assert_eq!(watch.links().count(), 7);
        // The kernel raises this to its smallest receive buffer, which holds one or two messages.
        watch.socket.set_buffer(1).unwrap();
        ip_batch(100, |i| format!("link add new{i} type veth peer name newer{i}"));
        ip("link delete old1");
        let mut events = watch.events().unwrap();
        assert!(watch.links.dumps > 1, "nothing was lost");
        while watch.links.dump.is_some() || watch.links.must_dump {
            watch.wait(Duration::from_secs(5)).unwrap();
            events.extend(watch.events().unwrap());
        }
        assert_eq!(watch.links().count(), 205);
        let count = |what| events.iter().filter(|event| brief(event).0 == what).count();
        assert_eq!((count("appeared"), count("gone"), events.len()), (200, 2, 202));
    });
}

/// After an overrun, the kernel queues nothing more until the socket is empty, and reports the overrun only
/// once.
#[test]
fn root_what_changes_while_a_loss_is_made_good_is_found_too() {
    in_new_netns(|| {
        let mut watch = LinkWatch::open().unwrap();
        watch.socket.set_buffer(1).unwrap();
        ip_batch(20, |i| format!("link add old{i} type veth peer name older{i}"));
        std::thread::scope(|scope| {
            let making =
                || ip_batch(130, |i| format!("link add new{i} type veth peer name newer{i}"));
            let making = scope.spawn(making);
            while !making.is_finished() {
                watch.events().unwrap();
            }
            making.join().unwrap();
        });
        assert!(watch.links.dumps > 1, "nothing was lost");
        watch.events().unwrap();
        while watch.links.dump.is_some() {
            watch.wait(Duration::from_secs(5)).unwrap();
            watch.events().unwrap();
        }
        assert_eq!(watch.links().count(), 301);
    });
}
