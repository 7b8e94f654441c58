//! A daemon and the guests of its file, each a [`machine::Machine`] in this process.

#[path = "common/mod.rs"]
mod common;
#[path = "common/machine.rs"]
mod machine;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;

use weir_client::protocol::{Ledger, Open};
use weir_client::status::SourceStatus;
use weir_client::{Connection, EndReason, FeedSource, OpenFeed};
use weir_consumer::thread::{Finished, Plan, Running, spawn};
use weir_consumer::{Consumer, Null};
use weir_frame::read::FrameReader;
use weir_ring::{Batch, Mapping, Poll, Reader, Ring, Start};
use weir_serve::Config;

use common::{setup, within_limit};
use machine::{Machine, serve_guests};

fn open(source: &str) -> Open {
    Open { source: source.into(), ..Open::default() }
}

fn read(source: FeedSource) -> Running<Null> {
    spawn(Box::new(Null::new()), Plan::new(Box::new(source)).unwrap()).unwrap()
}

/// Frames that were delivered, and lapped.
fn taken(running: Running<Null>) -> (u64, u64) {
    let Finished { consumer, failure, .. } = running.wait();
    assert!(failure.is_none(), "{failure:?}");
    (consumer.delivered().frames, consumer.delivered().lapped)
}

fn closes(ledger: &Ledger) {
    let Ledger { offered, filtered, blocked, sampled, captured, drops, .. } = ledger;
    let drops: u64 = drops.values().sum();
    assert_eq!(*offered, filtered + blocked + sampled + captured + drops, "{ledger:?}");
}

/// A source of generated frames that these guests may read.
fn source(spec: &str, more: &str, machines: &[&Machine]) -> String {
    let guests: String = machines.iter().map(|machine| machine.config()).collect();
    let names: Vec<_> = machines.iter().map(|machine| machine.name()).collect();
    format!(
        "[sources.all]\nsource = 'gen:{spec}'\nring_mib = 16\nguests = {names:?}\n{more}\n{guests}"
    )
}

/// Waits until this many more frames were read.
fn until_read(running: &Running<Null>, more: u64) {
    let before = running.delivered().frames;
    within_limit("frames", || running.delivered().frames >= before + more);
}

#[test]
fn every_frame_comes_to_a_guest_to_the_end_of_its_source() {
    let machine = Machine::new("one");
    let setup = setup(&source("frames=50k,rate=100kpps", "", &[&machine]));
    let _served = serve_guests(&setup);
    let connection = machine.connect();
    for _ in 0..3 {
        let (feed, source) = OpenFeed::new(&connection, &open("all")).unwrap();
        assert_eq!(taken(read(source)), (50_000, 0));
        assert_eq!(feed.ended(), Some(EndReason::SourceEnded));
        let ledger = feed.close().unwrap().ledger.expect("it is told");
        closes(&ledger);
        assert_eq!((ledger.captured, ledger.drops["relay"]), (50_000, 0), "{ledger:?}");
    }
}

#[test]
fn a_ledger_that_is_asked_for_all_the_time_closes_and_never_shrinks() {
    let machine = Machine::new("one");
    let setup = setup(&source("frames=200k,rate=100kpps", "", &[&machine]));
    let _served = serve_guests(&setup);
    let (feed, source) = OpenFeed::new(&machine.connect(), &open("all")).unwrap();
    let running = read(source);
    let mut before = Ledger::default();
    while feed.ended().is_none() {
        let now = feed.ledger().unwrap();
        closes(&now);
        assert!(
            now.offered >= before.offered && now.captured >= before.captured,
            "{now:?} {before:?}"
        );
        before = now;
    }
    assert_eq!(taken(running), (200_000, 0));
    assert_eq!(feed.close().unwrap().ledger.unwrap().captured, 200_000);
}

#[test]
fn two_guests_read_the_same_and_one_that_never_reads_costs_the_other_nothing() {
    let (one, other) = (Machine::new("one"), Machine::new("other"));
    let setup = setup(&source("rate=150kpps", "", &[&one, &other]));
    let _served = serve_guests(&setup);
    let (feed, source) = OpenFeed::new(&one.connect(), &open("all")).unwrap();
    let running = read(source);
    let (idle, unread) = OpenFeed::new(&other.connect(), &open("all")).unwrap();
    // Several times the capacity of a ring.
    until_read(&running, 600_000);
    let closed = feed.close().unwrap();
    let ledger = closed.ledger.unwrap();
    closes(&ledger);
    assert_eq!(ledger.drops.values().sum::<u64>(), 0, "{ledger:?}");
    assert_eq!(taken(running), (ledger.captured, 0));
    let ledger = idle.close().unwrap().ledger.unwrap();
    closes(&ledger);
    assert_eq!(ledger.drops["relay"], 0, "{ledger:?}");
    let (frames, lapped) = taken(read(unread));
    assert!(lapped > 0, "{frames} frames fit");
    assert_eq!(frames + lapped, ledger.captured);
}

#[test]
fn a_guest_learns_nothing_of_what_others_read() {
    let (one, other) = (Machine::new("one"), Machine::new("other"));
    let alone = "[sources.alone]\nsource = 'gen:rate=10kpps'\nring_mib = 16\nguests = ['one']\n";
    let text = source("rate=100kpps", "everybody = true", &[&one, &other]);
    let setup = setup(&format!("{alone}{text}"));
    let _served = serve_guests(&setup);
    let (others, source) = OpenFeed::new(&other.connect(), &open("all")).unwrap();
    let running = read(source);
    let process = Connection::open(&setup.path()).unwrap();
    let of_process: Vec<_> = (0..3).map(|_| OpenFeed::new(&process, &open("all"))).collect();
    until_read(&running, 20_000);
    let connection = one.connect();
    let status = connection.status().unwrap();
    let is_closed = |source: &SourceStatus| !source.is_open && source.engine.is_empty();
    assert!(status.sources.len() == 2 && status.sources.iter().all(is_closed), "{status:?}");
    assert!(status.feeds.is_empty() && status.clients.is_empty(), "{status:?}");
    let shared = connection.open_feed(&open("all")).unwrap();
    assert_eq!((shared.opened().key, shared.opened().from.as_slice()), (1, &[0][..]));
    let more: Vec<_> = (0..3).map(|_| OpenFeed::new(&process, &open("all"))).collect();
    let unshared = connection.open_feed(&open("alone")).unwrap();
    assert_eq!(unshared.opened().key, 2, "others have opened some meanwhile");
    let status = connection.status().unwrap();
    let ledgers: Vec<_> = status.clients.iter().map(|client| client.ledger.as_ref()).collect();
    let of_feeds: Vec<_> = status.feeds.iter().map(|feed| feed.ledger.as_ref()).collect();
    assert_eq!(of_feeds, ledgers, "its own accounts");
    assert!(ledgers.len() == 2 && ledgers.iter().all(Option::is_some), "{status:?}");
    for (feed, client) in status.feeds.iter().zip(&status.clients) {
        assert_eq!((feed.key, feed.rings, feed.readers), (client.key, 1, 1), "{status:?}");
        assert_eq!(client.connection, 0);
    }
    assert!(status.sources.iter().all(|source| source.is_open), "{status:?}");
    // Filters can be changed, whether or not others read the same rings.
    shared.set_filter("1,6 0 0 0").unwrap();
    unshared.set_filter("1,6 0 0 0").unwrap();
    let named = Open { name: Some("ids".into()), ..open("all") };
    let named = connection.open_feed(&named).unwrap();
    named.set_filter("1,6 0 0 0").unwrap();
    let entries = ["10.0.0.1".to_owned()];
    let blocked = connection.block_named("ids", &entries, &[], None).unwrap();
    assert_eq!((named.opened().key, blocked.keys), (3, vec![3]));
    assert_eq!(named.close().unwrap().key, 3);
    // Root sees everything, and sees the guest's rings by the daemon's keys.
    let all = process.status().unwrap();
    let guests = all.clients.iter().filter(|client| client.guest.as_deref() == Some("one"));
    let keys: Vec<u64> = guests.filter(|client| !client.is_closed).map(|of| of.key).collect();
    let feeds = |key| all.feeds.iter().filter(move |feed| feed.key == key).count();
    assert_eq!(keys.iter().map(|key| feeds(*key)).collect::<Vec<_>>(), [1, 1], "{all:?}");
    drop((shared, unshared, named, of_process, more));
    others.close().unwrap();
    let _ = taken(running);
}

#[test]
fn the_list_of_guests_says_what_each_may_open_by_the_file_in_force() {
    let machine = Machine::new("one");
    let hidden = "[sources.hidden]\nsource = 'gen:'\neverybody = true\n";
    let allowed = source("rate=1kpps", "", &[&machine]);
    let setup = setup(&format!("{hidden}{allowed}"));
    let _served = serve_guests(&setup);
    let sources = || setup.daemon.guests().remove(0).sources;
    assert_eq!(sources(), ["all"]);
    let denied = allowed.replace("guests = [\"one\"]", "guests = []");
    setup.daemon.reload(Config::parse(&denied).unwrap()).unwrap();
    assert!(sources().is_empty(), "{:?}", sources());
}

#[test]
fn a_guest_reads_on_when_the_right_of_another_reader_is_withdrawn() {
    let machine = Machine::new("one");
    let text = |more: &str| source("frames=400k,rate=100kpps", more, &[&machine]);
    let setup = setup(&text("everybody = true"));
    let _served = serve_guests(&setup);
    let (feed, source) = OpenFeed::new(&machine.connect(), &open("all")).unwrap();
    let running = read(source);
    let process = Connection::open(&setup.path()).unwrap();
    let (other, others) = OpenFeed::new(&process, &open("all")).unwrap();
    let other_reads = read(others);
    until_read(&running, 20_000);
    until_read(&other_reads, 20_000);
    assert_eq!(setup.daemon.reload(Config::parse(&text("")).unwrap()).unwrap(), 1);
    within_limit("the other ends", || other.ended().is_some());
    assert_eq!(feed.ended(), None, "the guest is told nothing");
    let ledger = feed.ledger().unwrap();
    closes(&ledger);
    assert!(ledger.captured >= 20_000, "{ledger:?}");
    until_read(&running, 20_000);
    // Once more, with rings that another reader has mapped again.
    setup.daemon.reload(Config::parse(&text("everybody = true")).unwrap()).unwrap();
    let (other, others) = OpenFeed::new(&process, &open("all")).unwrap();
    let others_again = read(others);
    until_read(&others_again, 20_000);
    assert_eq!(setup.daemon.reload(Config::parse(&text("")).unwrap()).unwrap(), 1);
    within_limit("the other ends", || other.ended().is_some());
    within_limit("the source ends", || feed.ended().is_some());
    assert_eq!(feed.ended(), Some(EndReason::SourceEnded));
    assert_eq!(taken(running), (400_000, 0));
    let ledger = feed.close().unwrap().ledger.unwrap();
    closes(&ledger);
    assert_eq!((ledger.offered, ledger.captured), (400_000, 400_000), "{ledger:?}");
    let _ = (taken(other_reads), taken(others_again));
}

#[test]
fn a_guest_whose_right_is_withdrawn_is_told_and_others_read_on_where_they_are() {
    let machine = Machine::new("one");
    let allowed = source("rate=100kpps", "everybody = true", &[&machine]);
    let denied = allowed.replace("guests = [\"one\"]", "guests = []");
    assert_ne!(allowed, denied);
    let setup = setup(&allowed);
    let _served = serve_guests(&setup);
    let (feed, source) = OpenFeed::new(&machine.connect(), &open("all")).unwrap();
    let running = read(source);
    let process = Connection::open(&setup.path()).unwrap();
    let (other, others) = OpenFeed::new(&process, &open("all")).unwrap();
    let other_reads = read(others);
    until_read(&running, 10_000);
    assert_eq!(setup.daemon.reload(Config::parse(&denied).unwrap()).unwrap(), 1);
    within_limit("it ends", || feed.ended().is_some());
    assert!(
        matches!(feed.ended(), Some(EndReason::Failed(why)) if why.contains("file has changed"))
    );
    let (frames, lapped) = taken(running);
    let ledger = feed.close().unwrap().ledger.unwrap();
    closes(&ledger);
    assert_eq!((frames + lapped, ledger.drops["relay"]), (ledger.captured, 0));
    until_read(&other_reads, 10_000);
    assert_eq!(other.ended(), None);
    other.close().unwrap();
    let _ = taken(other_reads);
}

#[test]
fn a_filter_and_a_block_list_of_a_guest_act_at_the_host() {
    let machine = Machine::new("one");
    let setup = setup(&source("rate=100kpps,flows=10", "", &[&machine]));
    let _served = serve_guests(&setup);
    let connection = machine.connect();
    let named = Open { name: Some("ids".into()), ..open("all") };
    let (feed, source) = OpenFeed::new(&connection, &named).unwrap();
    let running = read(source);
    until_read(&running, 10_000);
    // This filter accepts no frames. It is bytecode, because the compiler of filters is a process of the program
    // `weir`.
    feed.set_filter("1,6 0 0 0").unwrap();
    let captured = feed.ledger().unwrap().captured;
    within_limit("frames are filtered", || feed.ledger().unwrap().filtered > 10_000);
    let ledger = feed.ledger().unwrap();
    closes(&ledger);
    // Frames that were under way when the filter changed may still be captured.
    assert!(ledger.captured < captured + 20_000, "{ledger:?} {captured}");
    within_limit("nothing more comes", || {
        let before = feed.ledger().unwrap().captured;
        let filtered = feed.ledger().unwrap().filtered;
        within_limit("frames", || feed.ledger().unwrap().filtered > filtered + 5_000);
        feed.ledger().unwrap().captured == before
    });
    feed.set_filter("").unwrap();
    until_read(&running, 10_000);
    let all = ["0.0.0.0/0".to_owned()];
    feed.block(&all, &[]).unwrap();
    within_limit("frames are blocked", || feed.ledger().unwrap().blocked > 10_000);
    feed.block(&[], &all).unwrap();
    until_read(&running, 10_000);
    // Change the block list by the feed's name, as another program in the guest does.
    let blocked = feed.ledger().unwrap().blocked;
    assert_eq!(connection.block_named("ids", &all, &[], None).unwrap().changed, 1);
    within_limit("frames are blocked", || feed.ledger().unwrap().blocked > blocked + 10_000);
    assert!(connection.block_named("other", &all, &[], None).is_err());
    connection.block_named("ids", &[], &all, None).unwrap();
    until_read(&running, 10_000);
    let ledger = feed.close().unwrap().ledger.unwrap();
    closes(&ledger);
    assert_eq!(taken(running), (ledger.captured, 0));
    assert_eq!(ledger.drops["relay"], 0);
}

#[test]
fn guests_share_rings_until_one_changes_what_it_takes() {
    let (one, other) = (Machine::new("one"), Machine::new("other"));
    let setup = setup(&source("rate=100kpps,flows=10", "", &[&one, &other]));
    let _served = serve_guests(&setup);
    // As a broker does, because it may have to change the feed later.
    let own = Open { own: true, ..open("all") };
    let (feed, source) = OpenFeed::new(&one.connect(), &own).unwrap();
    let (others, read_by_other) = OpenFeed::new(&other.connect(), &own).unwrap();
    let (running, of_other) = (read(source), read(read_by_other));
    let host = Connection::open(&setup.path()).unwrap();
    let rings_of = || host.status().unwrap().feeds.len();
    assert_eq!(rings_of(), 1, "both read the same");
    until_read(&running, 10_000);
    until_read(&of_other, 10_000);
    feed.set_filter("1,6 0 0 0").unwrap();
    assert_eq!(rings_of(), 2);
    within_limit("frames are filtered", || feed.ledger().unwrap().filtered > 10_000);
    assert_eq!(others.ledger().unwrap().filtered, 0);
    until_read(&of_other, 10_000);
    feed.set_filter("").unwrap();
    until_read(&running, 10_000);
    // By now only the other guest reads its rings, so they are changed in place.
    others.block(&["0.0.0.0/0".to_owned()], &[]).unwrap();
    within_limit("frames are blocked", || others.ledger().unwrap().blocked > 10_000);
    assert_eq!((rings_of(), feed.ledger().unwrap().blocked), (2, 0));
    until_read(&running, 10_000);
    for (feed, running) in [(feed, running), (others, of_other)] {
        let ledger = feed.close().unwrap().ledger.unwrap();
        closes(&ledger);
        assert_eq!(taken(running), (ledger.captured, 0));
        assert_eq!(ledger.drops["relay"], 0);
    }
}

#[test]
fn a_feed_that_joins_rings_which_another_leaves_has_each_frame_once() {
    let machine = Machine::new("one");
    let setup = setup(&source("rate=100kpps,flows=50", "", &[&machine]).replace("= 16", "= 4"));
    let _served = serve_guests(&setup);
    let half = Open { part: Some("1/2".into()), own: true, ..open("all") };
    let connection = machine.connect();
    let (mut before, source) = OpenFeed::new(&connection, &half).unwrap();
    let mut reads = read(source);
    for _ in 0..8 {
        until_read(&reads, 5_000);
        let (feed, source) = OpenFeed::new(&connection, &half).unwrap();
        let running = read(source);
        let ledger = before.close().unwrap().ledger.unwrap();
        closes(&ledger);
        assert_eq!(ledger.drops["relay"], 0, "{ledger:?}");
        assert_eq!(taken(reads), (ledger.captured, 0));
        (before, reads) = (feed, running);
    }
}

#[test]
fn parts_samples_and_cut_frames_come_as_they_are_captured() {
    let machine = Machine::new("one");
    let setup = setup(&source("frames=100k,rate=100kpps,flows=1000,size=512", "", &[&machine]));
    let _served = serve_guests(&setup);
    let connection = machine.connect();
    let part = |part: &str| Open { part: Some(part.into()), ..open("all") };
    let sampled = Open { sample: Some(10), snaplen: Some(64), ..open("all") };
    // Each is read from when it is open: the first ring holds only what comes in half a second.
    let feeds = [part("1/2"), part("2/2"), sampled].map(|open| {
        let (feed, source) = OpenFeed::new(&connection, &open).unwrap();
        (feed, read(source))
    });
    let mut frames = Vec::new();
    for (feed, running) in feeds {
        let (read, lapped) = taken(running);
        let ledger = feed.close().unwrap().ledger.unwrap();
        closes(&ledger);
        assert_eq!((read, lapped, ledger.drops["relay"]), (ledger.captured, 0, 0));
        frames.push(ledger);
    }
    let [one, two, ten] = &frames[..] else { panic!("three") };
    // Feeds that join a running source begin later.
    assert!(one.offered == 100_000 && one.captured > 0 && two.captured > 0, "{frames:?}");
    assert!(one.captured + two.captured <= 100_000, "{frames:?}");
    assert!(ten.captured.abs_diff(ten.offered / 10) <= 1, "{ten:?}");
    assert_eq!(ten.kept_bytes, 64 * ten.captured, "{ten:?}");
    assert_eq!(ten.wire_bytes, 508 * ten.captured, "without FCS: {ten:?}");
}

/// Number of voluntary context switches of the threads with this name so far; `None` if there is no such thread.
fn sleeps(name: &str) -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_one = |folder: std::path::PathBuf| {
        let comm = std::fs::read_to_string(folder.join("comm")).ok()?;
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        let count: u64 = line.split_whitespace().last()?.parse().ok()?;
        (comm.trim() == name).then_some(count)
    };
    let all: Vec<u64> = tasks.filter_map(|task| of_one(task.path())).collect();
    (!all.is_empty()).then(|| all.iter().sum())
}

#[test]
fn a_relay_that_has_nothing_to_do_is_not_woken() {
    let machine = Machine::new("one");
    let setup = setup(&source("rate=10kpps", "", &[&machine]));
    let _served = serve_guests(&setup);
    // A filter that accepts no frames.
    let none = Open { filter: "1,6 0 0 0".into(), ..open("all") };
    // Nobody reads in the guest, so the only consumer is the relay.
    let (feed, _unread) = OpenFeed::new(&machine.connect(), &none).unwrap();
    within_limit("the source runs", || feed.ledger().unwrap().filtered > 1000);
    within_limit("it sleeps, for longer than the second of other consumers", || {
        // A thread of another test that ends meanwhile can hide the relay's thread from the list.
        let Some(before) = sleeps("weir-consumer") else { return false };
        std::thread::sleep(std::time::Duration::from_millis(2500));
        sleeps("weir-consumer") == Some(before)
    });
    let filtered = feed.ledger().unwrap().filtered;
    within_limit("the source runs", || feed.ledger().unwrap().filtered > filtered);
    closes(&feed.close().unwrap().ledger.unwrap());
}

/// A network namespace for one test.
struct Namespace(String);

impl Namespace {
    fn new(of: &str) -> Namespace {
        let name = format!("weir-guests-{of}-{}", std::process::id());
        let made = Command::new("ip").args(["netns", "add", &name]).status().unwrap();
        assert!(made.success(), "ip netns add {name}");
        Namespace(name)
    }

    fn ip(&self, args: &str) {
        let done = Command::new("ip").args(["-n", &self.0]).args(args.split(' ')).status().unwrap();
        assert!(done.success(), "ip -n {} {args}", self.0);
    }

    /// Creates a pair of interfaces that are up. The kernel sends frames over them at once (IPv6 autoconfiguration).
    fn pair(&self, name: &str) {
        self.ip(&format!("link add {name} type veth peer name peer-{name}"));
        self.ip(&format!("link set {name} up"));
        self.ip(&format!("link set peer-{name} up"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let line = format!("SKIPPED {test}: needs root\n");
        eprint!("{line}");
        if let Some(path) = std::env::var_os("WEIR_SKIP_LOG") {
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            file.unwrap().write_all(line.as_bytes()).unwrap();
        }
    }
    is_root
}

/// The number of frames in a ring, by the name of their interface.
fn by_interface(ring: &Ring<Mapping>) -> BTreeMap<String, u64> {
    let (mut frames, mut batch) = (BTreeMap::new(), Batch::new());
    let header = ring.identity().unwrap().pcapng_header;
    let mut described = FrameReader::open(&header[..]).unwrap();
    while described.next().unwrap().is_some() {}
    let names: Vec<_> = described.interfaces().iter().map(|of| of.name.clone()).collect();
    let mut reader = Reader::new(ring, Start::Oldest).unwrap();
    while let Poll::Frames(_) = reader.poll(&mut batch).unwrap() {
        for record in batch.records() {
            *frames.entry(names[record.meta.interface_id as usize].clone()).or_default() += 1;
        }
    }
    frames
}

#[test]
fn root_interfaces_that_join_a_pattern_are_described_to_a_guest() {
    if !is_root("root_interfaces_that_join_a_pattern_are_described_to_a_guest") {
        return;
    }
    let (machine, netns) = (Machine::new("one"), Namespace::new("pattern"));
    let setup =
        setup(&source("", "", &[&machine]).replace("gen:", &format!("netns:{}/own*", netns.0)));
    let _served = serve_guests(&setup);
    let feed = machine.connect().open_feed(&open("all")).unwrap();
    for name in ["own0", "own1", "own2"] {
        netns.pair(name);
        within_limit("its frames", || by_interface(&feed.rings()[0]).contains_key(name));
    }
    netns.ip("link delete own1");
    netns.pair("own3");
    within_limit("its frames", || by_interface(&feed.rings()[0]).contains_key("own3"));
    let found = by_interface(&feed.rings()[0]);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["own0", "own1", "own2", "own3"]);
    let ledger = feed.close().unwrap().ledger.unwrap();
    closes(&ledger);
    assert_eq!(by_interface(&feed.rings()[0]).values().sum::<u64>(), ledger.captured);
    assert_eq!(ledger.drops["relay"], 0, "{ledger:?}");
}

#[test]
fn root_an_interface_that_vanishes_ends_a_guests_feed_and_it_is_opened_again() {
    if !is_root("root_an_interface_that_vanishes_ends_a_guests_feed_and_it_is_opened_again") {
        return;
    }
    let (machine, netns) = (Machine::new("one"), Namespace::new("follow"));
    let setup =
        setup(&source("", "", &[&machine]).replace("gen:", &format!("netns:{}/own0", netns.0)));
    let _served = serve_guests(&setup);
    let connection = machine.connect();
    for life in 0..3 {
        netns.pair("own0");
        let (feed, source) = OpenFeed::new(&connection, &open("all")).unwrap();
        let running = read(source);
        netns.ip("addr add fe80::77/64 dev peer-own0");
        within_limit("frames", || running.delivered().frames > 0);
        netns.ip("link delete own0");
        within_limit("it ends", || feed.ended().is_some());
        assert!(
            matches!(feed.ended(), Some(EndReason::Failed(_))),
            "life {life}: {:?}",
            feed.ended()
        );
        // The consumer stops by itself at the end of the ring.
        let (frames, lapped) = taken(running);
        let ledger = feed.close().unwrap().ledger.unwrap();
        closes(&ledger);
        assert_eq!((frames + lapped, ledger.drops["relay"]), (ledger.captured, 0), "{ledger:?}");
        assert!(OpenFeed::new(&connection, &open("all")).is_err(), "it is not there");
    }
}
