//! A daemon and its clients, in this process and in others: this test program, started again for the one test
//! [`client_process`].

#[path = "common/mod.rs"]
mod common;
#[path = "../../weir-ring/tests/common/process.rs"]
mod process;

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use weir_client::protocol::Open;
use weir_client::{ClientError, Connection, EndReason, FeedSource, OpenFeed};
use weir_consumer::thread::{Finished, Plan, Running, spawn};
use weir_consumer::{Consumer, Null};

use common::{open_fds, setup, within_limit};
use process::{Other, ROLE};

fn open(source: &str) -> Open {
    Open { source: source.into(), ..Open::default() }
}

fn read(source: FeedSource) -> Running<Null> {
    spawn(Box::new(Null::new()), Plan::new(Box::new(source)).unwrap()).unwrap()
}

/// Frames that were delivered or lapped.
fn accounted(running: Running<Null>) -> u64 {
    let Finished { consumer, failure, .. } = running.wait();
    assert!(failure.is_none(), "{failure:?}");
    consumer.delivered().frames + consumer.delivered().lapped
}

#[test]
fn a_source_that_is_denied_does_not_exist() {
    let setup = setup(
        "[sources.yes]\nsource = 'gen:frames=9'\neverybody = true\nsnaplen = 64\n\
         [sources.hidden]\nsource = 'gen:frames=9'",
    );
    let connection = Connection::open(&setup.path()).unwrap();
    let names: Vec<_> = connection.sources().unwrap();
    assert_eq!(names.len(), 1);
    assert_eq!((names[0].source.as_str(), names[0].snaplen), ("yes", 64));
    let said = |name: &str| match OpenFeed::new(&connection, &open(name)) {
        Err(ClientError::Plug(error)) => error.to_string().replace(name, "?"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("{name} is open"),
    };
    assert!(said("missing").contains("there is no source"), "{}", said("missing"));
    // This process is also the daemon, whose user sees all sources.
    let status = connection.status().unwrap();
    let unavailable = |name: &str| {
        let mut sources = status.sources.iter();
        sources.find(|source| source.source == name).expect(name).unavailable.clone()
    };
    assert_eq!(unavailable("yes"), None);
    let why = unavailable("hidden").expect("the file allows nobody");
    assert_eq!(why, "the file allows nobody; add users, groups or everybody = true");
    // Root of the host sees all sources.
    match rustix::process::geteuid().is_root() {
        true => assert!(said("hidden").contains("add \"root\" to its users"), "{}", said("hidden")),
        false => assert_eq!(said("hidden"), said("missing")),
    }
}

#[test]
fn every_frame_is_read_to_the_end_of_its_source() {
    let setup = setup("[sources.all]\nsource = 'gen:frames=5000'\neverybody = true\nring_mib = 16");
    let connection = Connection::open(&setup.path()).unwrap();
    // Each feed opens the source again. A source may end before the daemon has noted that it is open.
    for _ in 0..20 {
        let (feed, source) = OpenFeed::new(&connection, &open("all")).unwrap();
        assert_eq!(accounted(read(source)), 5000);
        assert_eq!(feed.ended(), Some(EndReason::SourceEnded));
        let closed = feed.close().unwrap();
        let ledger = closed.ledger.expect("it is told");
        assert!(closed.ended && ledger.offered == 5000 && ledger.captured == 5000, "{ledger:?}");
    }
    drop(connection);
    within_limit("the connection ends", || setup.serving.connections() == 0);
}

/// Not a test by itself: a client that reads until it is killed.
#[test]
fn client_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let path = std::env::var_os("WEIR_TEST_SOCKET").unwrap();
    let connection = Connection::open(Path::new(&path)).unwrap();
    let (_feed, source) = OpenFeed::new(&connection, &open("all")).unwrap();
    let running = read(source);
    within_limit("frames", || running.delivered().frames > 0);
    let mut stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    stream.write_all(b"r").unwrap();
    let _ = running.wait();
}

#[test]
fn a_client_that_is_killed_leaves_nothing_and_the_ledger_of_another_closes() {
    let setup =
        setup("[sources.all]\nsource = 'gen:rate=100kpps'\neverybody = true\nring_mib = 64");
    let connection = Connection::open(&setup.path()).unwrap();
    let (feed, source) = OpenFeed::new(&connection, &open("all")).unwrap();
    let running = read(source);
    let before = open_fds();
    for _ in 0..3 {
        let path = setup.path();
        let variables: [(&str, &OsStr); 1] = [("WEIR_TEST_SOCKET", path.as_os_str())];
        let mut other = Other::start("client_process", "client", &variables);
        other.stream.read_exact(&mut [0]).unwrap();
        assert!(open_fds() > before);
        other.child.kill().unwrap();
        other.child.wait().unwrap();
    }
    within_limit("connections end", || setup.serving.connections() == 1);
    within_limit("descriptors are closed", || open_fds() <= before);
    let closed = feed.close().unwrap();
    let ledger = closed.ledger.expect("it is told");
    assert!(closed.ended, "it was the last reader");
    let drops: u64 = ledger.drops.values().sum();
    assert_eq!(ledger.offered, ledger.filtered + ledger.captured + drops, "{ledger:?}");
    assert_eq!(accounted(running), ledger.captured);
}

#[test]
fn one_of_two_readers_leaves_and_the_other_goes_on() {
    let setup =
        setup("[sources.all]\nsource = 'gen:rate=100kpps'\neverybody = true\nring_mib = 64");
    let [one, two] = [(); 2].map(|()| Connection::open(&setup.path()).unwrap());
    let (stays, source) = OpenFeed::new(&one, &open("all")).unwrap();
    let staying = read(source);
    within_limit("frames", || staying.delivered().frames > 0);
    let (goes, source) = OpenFeed::new(&two, &open("all")).unwrap();
    assert_eq!(goes.key(), stays.key(), "they share rings");
    let going = read(source);
    within_limit("frames", || going.delivered().frames > 1000);
    let closed = goes.close().unwrap();
    assert!(!closed.ended, "{closed:?}");
    // The feed begins where the rings were when it was opened.
    let ledger = closed.ledger.expect("it is told");
    assert_eq!(accounted(going), ledger.captured);
    assert!(ledger.captured < closed.until.iter().sum::<u64>(), "{ledger:?}");
    assert_eq!(ledger.offered, ledger.filtered + ledger.captured, "{ledger:?}");
    let so_far = staying.delivered().frames;
    within_limit("more frames", || staying.delivered().frames > so_far);
    // A filter that takes nothing, as tcpdump -ddd prints it.
    stays.set_filter("1\n6 0 0 0").unwrap();
    within_limit("filtered frames", || {
        let feeds = one.statistics().unwrap();
        feeds[0].ledger.as_ref().is_some_and(|ledger| ledger.filtered > 0)
    });
    let closed = stays.close().unwrap();
    let ledger = closed.ledger.expect("it is told");
    assert!(closed.ended, "it was the last reader");
    assert_eq!(ledger.offered, ledger.filtered + ledger.captured, "{ledger:?}");
    assert_eq!(accounted(staying), ledger.captured);
}

#[test]
fn a_reader_moves_to_rings_of_its_own_also_after_changes_that_were_refused() {
    let setup =
        setup("[sources.all]\nsource = 'gen:rate=100kpps'\neverybody = true\nring_mib = 16");
    let connection = Connection::open(&setup.path()).unwrap();
    let [(stays, first), (moves, second)] =
        [(); 2].map(|()| OpenFeed::new(&connection, &open("all")).unwrap());
    let (staying, moving) = (read(first), read(second));
    assert_eq!(stays.key(), moves.key(), "they share rings");
    moves.set_filter("1\n5 0 0 7").unwrap_err();
    moves.block(&["no entry".into()], &[]).unwrap_err();
    // This filter accepts all frames, but differs from no filter, so the feed needs other rings.
    moves.set_filter("1\n6 0 0 262144").unwrap();
    let so_far = moving.delivered().frames;
    within_limit("more frames", || moving.delivered().frames > so_far + 100_000);
    for feed in [&stays, &moves] {
        let closed = feed.close().unwrap();
        let ledger = closed.ledger.expect("it is told");
        assert!(closed.ended, "it was the last reader");
        assert_eq!(ledger.offered, ledger.captured, "{ledger:?}");
    }
    assert!(accounted(moving) > 100_000 && accounted(staying) > 100_000);
}

#[test]
fn a_clients_program_takes_nothing_that_the_files_does_not() {
    let file = "[sources.all]\nsource = 'gen:frames=5000'\neverybody = true\nring_mib = 16\nfilter = '1,6 0 0 0'";
    for filter in ["", "1,6 0 0 262144", "1\n6 0 0 262144"] {
        let setup = setup(file);
        let connection = Connection::open(&setup.path()).unwrap();
        let open = Open { filter: filter.into(), ..open("all") };
        let (feed, source) = OpenFeed::new(&connection, &open).unwrap();
        assert_eq!(accounted(read(source)), 0, "{filter}");
        let ledger = feed.close().unwrap().ledger.expect("it is told");
        assert_eq!((ledger.offered, ledger.filtered), (5000, 5000), "{filter}");
    }
}

#[test]
fn what_was_refused_counts_for_nothing() {
    let setup = setup(
        "[sources.all]\nsource = 'gen:rate=1kpps'\neverybody = true\nring_mib = 16\nfilter = '1,6 0 0 9'\n\
         [limits]\nfeeds = 2\nopens_per_second = 1000",
    );
    let connection = Connection::open(&setup.path()).unwrap();
    let wrong = [
        Open { filter: "1,5 0 0 7".into(), ..open("all") },
        Open { snaplen: Some(0), ..open("all") },
        Open { part: Some("9/2".into()), ..open("all") },
        open("missing"),
    ];
    for open in wrong.iter().cycle().take(20) {
        assert!(connection.open_feed(open).is_err(), "{open:?}");
    }
    let feeds = [0; 2].map(|_| connection.open_feed(&open("all")).unwrap());
    assert!(connection.open_feed(&open("all")).is_err());
    drop(feeds);
    connection.open_feed(&open("all")).unwrap();
}

#[test]
fn a_daemon_that_ends_ends_its_readers() {
    let setup =
        setup("[sources.all]\nsource = 'gen:rate=100kpps'\neverybody = true\nring_mib = 64");
    let connection = Connection::open(&setup.path()).unwrap();
    let (feed, source) = OpenFeed::new(&connection, &open("all")).unwrap();
    let running = read(source);
    within_limit("frames", || running.delivered().frames > 1000);
    drop(setup);
    assert!(accounted(running) > 1000);
    assert!(feed.ended().is_some());
}
