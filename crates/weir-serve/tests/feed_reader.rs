//! [`FeedReader`], whose caller requests frames, at a daemon in this process. Also in a process that forks: this test
//! program, started again for the one test [`forking_process`].

#[path = "common/mod.rs"]
mod common;
#[path = "../../weir-ring/tests/common/process.rs"]
#[allow(dead_code, reason = "the socket between both is not needed here")]
mod process;

use std::ffi::OsStr;
use std::fs::Permissions;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Uid;
use weir_client::protocol::Open;
use weir_client::{ClientError, Connection, FeedReader};
use weir_consumer::Pulled;
use weir_serve::Config;

use common::{Setup, open_fds, setup, within_limit};
use process::{Other, ROLE};

const LONG: Duration = Duration::from_secs(30);

fn open(source: &str) -> Open {
    Open { source: source.into(), ..Open::default() }
}

/// Reads to the end; returns the number of frames, counted by their records.
fn read_to_the_end(reader: &mut FeedReader) -> u64 {
    let mut records = 0;
    loop {
        match reader.next(1000, LONG).unwrap() {
            Pulled::Frames(frames) => {
                assert_eq!(reader.run().records().count() as u64, frames);
                records += frames;
            }
            Pulled::Ended => return records,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_frame_is_read_and_accounted_for() {
    let setup = setup("[sources.all]\nsource = 'gen:frames=5000'\neverybody = true\nring_mib = 16");
    let before = open_fds();
    let mut reader = FeedReader::connect(&setup.path(), &open("all")).unwrap();
    assert_eq!((reader.source().link_type, reader.is_open()), (1, false));
    assert_eq!(read_to_the_end(&mut reader), 5000);
    assert_eq!(reader.next(1, LONG).unwrap(), Pulled::Ended);
    let statistics = reader.statistics().unwrap();
    let (ledger, delivered) = (&statistics.ledger, &statistics.delivered);
    assert_eq!((ledger.offered, ledger.captured, delivered.frames), (5000, 5000, 5000));
    assert_eq!((delivered.lapped, statistics.lives), (0, 1));
    drop(reader);
    within_limit("the connection ends", || setup.serving.connections() == 0);
    within_limit("descriptors are closed", || open_fds() <= before);
}

#[test]
fn a_source_that_is_not_there_is_said_at_once_and_a_filter_that_is_wrong_at_the_opening() {
    let setup = setup("[sources.all]\nsource = 'gen:frames=9'\neverybody = true");
    let error = FeedReader::connect(&setup.path(), &open("none")).err().unwrap();
    assert!(matches!(error, ClientError::NoSource(name) if name == "none"));
    let mut reader = FeedReader::connect(&setup.path(), &open("all")).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&reader.pollable().unwrap());
    reader.set_filter("no filter at all").unwrap();
    assert!(matches!(reader.next(1, LONG), Err(ClientError::Plug(_))));
    // The filter can be corrected: then frames are read, and the descriptor for event loops is the same.
    reader.set_filter("").unwrap();
    assert_eq!(read_to_the_end(&mut reader), 9);
    assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&reader.pollable().unwrap()), fd);
}

#[test]
fn a_filter_that_is_set_before_the_first_read_acts_at_the_daemon() {
    let setup = setup("[sources.all]\nsource = 'gen:frames=5000'\neverybody = true\nring_mib = 16");
    let mut reader = FeedReader::connect(&setup.path(), &open("all")).unwrap();
    // A program that accepts nothing, as `tcpdump -ddd` prints it.
    reader.set_filter("1\n6 0 0 0").unwrap();
    assert_eq!(read_to_the_end(&mut reader), 0);
    let ledger = reader.statistics().unwrap().ledger;
    assert_eq!((ledger.offered, ledger.filtered, ledger.captured), (5000, 5000, 0));
}

#[test]
fn an_event_loop_reads_every_frame_and_hears_of_the_end() {
    let setup = setup("[sources.all]\nsource = 'gen:frames=20000,rate=100kpps'\neverybody = true");
    let mut reader = FeedReader::connect(&setup.path(), &open("all")).unwrap();
    let (mut frames, mut calls) = (0, 0);
    loop {
        let fd = reader.pollable().unwrap();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let limit = Timespec::try_from(LONG).unwrap();
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "{frames} frames");
        calls += 1;
        match reader.next(100, Duration::ZERO).unwrap() {
            Pulled::Frames(more) => frames += more,
            Pulled::Nothing => {}
            Pulled::Ended => break,
            other @ Pulled::Interrupted => panic!("{other:?}"),
        }
        reader.arm().unwrap();
    }
    assert_eq!(frames, 20_000);
    assert!(calls < 20_000, "{calls} calls: one that is armed does not spin");
}

#[test]
fn a_filter_changes_while_others_read_the_same() {
    let setup =
        setup("[sources.all]\nsource = 'gen:rate=100kpps'\neverybody = true\nring_mib = 16");
    let [mut one, mut other] =
        [(); 2].map(|()| FeedReader::connect(&setup.path(), &open("all")).unwrap());
    for reader in [&mut one, &mut other] {
        assert!(matches!(reader.next(10, LONG).unwrap(), Pulled::Frames(_)));
    }
    one.set_filter("1\n6 0 0 0").unwrap();
    // Frames that were captured before are still read.
    within_limit("no frame comes any more", || {
        let pulled = one.next(u64::MAX, Duration::from_millis(200)).unwrap();
        pulled == Pulled::Nothing
    });
    assert!(matches!(other.next(10, LONG).unwrap(), Pulled::Frames(_)));
    // The statistics include the rings that the reader has left.
    let told = one.statistics().unwrap();
    assert!(told.ledger.filtered > 0 && told.delivered.frames > 0);
    assert_eq!(told.ledger.captured, told.delivered.frames + told.delivered.lapped);
}

/// Calls `run` in a thread of user 1, whom the daemon then sees as the client. First lets everybody open the socket.
fn as_user_1<T: Send>(setup: &Setup, run: impl FnOnce() -> T + Send) -> T {
    let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode));
    open(setup.path().parent().unwrap(), 0o755).unwrap();
    open(&setup.path(), 0o666).unwrap();
    std::thread::scope(|scope| {
        let as_user = || {
            let user = Uid::from_raw(1);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            run()
        };
        scope.spawn(as_user).join().unwrap()
    })
}

#[test]
fn root_a_feed_whose_filter_was_changed_moves_without_losing_a_frame() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("root_a_feed_whose_filter_was_changed_moves_without_losing_a_frame: needs root");
        return;
    }
    move_changed_feed(false);
}

#[test]
fn root_a_feed_that_has_just_moved_can_be_changed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("root_a_feed_that_has_just_moved_can_be_changed: needs root");
        return;
    }
    move_changed_feed(true);
}

/// Makes the daemon move a feed. `is_changed_again`: the feed is changed before its reader has read the old rings.
fn move_changed_feed(is_changed_again: bool) {
    const FRAMES: u64 = 500_000;
    let config = |users: &str| {
        format!(
            "[sources.all]\nsource = 'gen:frames={FRAMES},rate=100kpps,flows=2'\nusers = [{users}]\n\
             ring_mib = 128"
        )
    };
    let setup = setup(&config("0, 1"));
    let mut reader = FeedReader::connect(&setup.path(), &open("all")).unwrap();
    let Pulled::Frames(mut frames) = reader.next(1, LONG).unwrap() else { panic!("no frame") };
    let first = reader.run().records().next().unwrap();
    let source = Ipv4Addr::from(<[u8; 4]>::try_from(&first.frame[26..30]).unwrap());
    // User 1 maps the rings and leaves. Then only this reader has a feed on them, so changes are made in place.
    as_user_1(&setup, || {
        let mut other = FeedReader::connect(&setup.path(), &open("all")).unwrap();
        assert!(matches!(other.next(1, LONG).unwrap(), Pulled::Frames(_)));
    });
    within_limit("user 1 has left", || setup.serving.connections() == 1);
    let connection = Connection::open(&setup.path()).unwrap();
    // The key of the feed that was opened last.
    let key = || connection.status().unwrap().clients.last().unwrap().key;
    let before = key();
    // A program that accepts all frames, as `tcpdump -ddd` prints it.
    reader.set_filter("1\n6 0 0 96").unwrap();
    reader.block(&[source.to_string()], &[]).unwrap();
    assert_eq!(key(), before, "it was changed in place");
    setup.daemon.reload(Config::parse(&config("0")).unwrap()).unwrap();
    if is_changed_again {
        reader.set_filter("1\n6 0 0 64").unwrap();
        reader.block(&["192.0.2.1".into()], &[]).unwrap();
        assert_ne!(key(), before, "it was changed in the fresh rings");
    }
    let mut counts = || {
        let Pulled::Frames(more) = reader.next(u64::MAX, LONG).unwrap() else { panic!("no frame") };
        frames += more;
        key() != before
    };
    within_limit("it reads other rings", &mut counts);
    let blocked = reader.statistics().unwrap().ledger.blocked;
    frames += read_to_the_end(&mut reader);
    let statistics = reader.statistics().unwrap();
    let (ledger, delivered) = (&statistics.ledger, &statistics.delivered);
    assert_eq!(ledger.offered, FRAMES, "every frame is in a ledger: {statistics:?}");
    assert_eq!(ledger.captured + ledger.blocked, FRAMES, "{statistics:?}");
    assert!(blocked < ledger.blocked, "the block list has moved, too: {statistics:?}");
    assert_eq!((delivered.frames, delivered.lapped), (frames, 0), "{statistics:?}");
    assert_eq!(frames, ledger.captured);
}

/// Frames of the source that [`forking_process`] reads before and after its fork.
const FORK_FRAMES: u64 = 200_000;

/// Reads to the end. Asserts that every frame captured for this process is in its counts, and returns their number.
fn read_the_rest(reader: &mut FeedReader) -> u64 {
    let frames = read_to_the_end(reader);
    let statistics = reader.statistics().unwrap();
    let (ledger, delivered) = (&statistics.ledger, &statistics.delivered);
    let drops: u64 = ledger.drops.values().sum();
    assert_eq!(delivered.frames, frames, "{statistics:?}");
    assert_eq!(ledger.captured, delivered.frames + delivered.lapped, "{statistics:?}");
    assert_eq!(ledger.offered, ledger.captured + ledger.filtered + drops, "{statistics:?}");
    ledger.captured
}

/// Not a test by itself: a process that forks while it reads.
#[test]
fn forking_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let path = PathBuf::from(std::env::var_os("WEIR_TEST_SOCKET").unwrap());
    let name = std::env::var("WEIR_TEST_NAME").ok().filter(|name| !name.is_empty());
    let shares_rings = name.is_none();
    let mut reader = FeedReader::connect(&path, &Open { name, ..open("all") }).unwrap();
    let Pulled::Frames(before) = reader.next(1000, LONG).unwrap() else { panic!("no frames") };
    // SAFETY: the only other threads are the connection's, which holds no lock that the child takes, and the test
    // harness's, which waits for this one.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let read = std::panic::catch_unwind(AssertUnwindSafe(|| {
            // More frames must be captured between the fork and the child's first call.
            let connection = Connection::open(&path).unwrap();
            let captured =
                || connection.status().unwrap().feeds[0].ledger.clone().unwrap().captured;
            let at_fork = captured();
            within_limit("frames come", || captured() > at_fork + 1000);
            let captured = read_the_rest(&mut reader);
            match shares_rings {
                true => {
                    assert_eq!(captured, FORK_FRAMES - before, "it reads on where its parent was")
                }
                false => {
                    assert!((1..FORK_FRAMES - before - 1000).contains(&captured), "{captured}")
                }
            }
        }));
        // SAFETY: ends this process without running anything of the parent's.
        unsafe { libc::_exit(read.is_err().into()) };
    }
    let mut status = 0;
    // SAFETY: `status` is there to be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child");
    // Frames that the child has read must not be in its parent's counts.
    let captured = before + read_to_the_end(&mut reader) + reader.delivered().lapped;
    assert_eq!((captured, reader.statistics().unwrap().ledger.captured), (FORK_FRAMES, captured));
}

#[test]
fn the_child_of_a_fork_counts_every_frame_from_where_it_begins() {
    let source = format!("gen:frames={FORK_FRAMES},rate=50kpps");
    let setup =
        setup(&format!("[sources.all]\nsource = '{source}'\neverybody = true\nring_mib = 64"));
    for name in ["", "own"] {
        let path = setup.path();
        let variables: [(&str, &OsStr); 2] =
            [("WEIR_TEST_SOCKET", path.as_os_str()), ("WEIR_TEST_NAME", name.as_ref())];
        let mut process = Other::start("forking_process", "forks", &variables);
        assert!(process.child.wait().unwrap().success(), "feed '{name}'");
    }
}
