//! A feed whose caller asks for frames, at a daemon in this process.

#[path = "common/mod.rs"]
mod common;

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use weir_client::protocol::Open;
use weir_client::{ClientError, FeedReader};
use weir_consumer::Pulled;

use common::{open_fds, setup, within_limit};

const LONG: Duration = Duration::from_secs(30);

fn open(source: &str) -> Open {
    Open { source: source.into(), ..Open::default() }
}

/// Frames until the end, counted by walking their records.
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
    // It can be mended, and what waits for it still does.
    reader.set_filter("").unwrap();
    assert_eq!(read_to_the_end(&mut reader), 9);
    assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&reader.pollable().unwrap()), fd);
}

#[test]
fn a_filter_that_is_set_before_the_first_read_acts_at_the_daemon() {
    let setup = setup("[sources.all]\nsource = 'gen:frames=5000'\neverybody = true\nring_mib = 16");
    let mut reader = FeedReader::connect(&setup.path(), &open("all")).unwrap();
    // Nothing, as tcpdump -ddd prints it.
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
    // What was captured before is still read.
    within_limit("no frame comes any more", || {
        let pulled = one.next(u64::MAX, Duration::from_millis(200)).unwrap();
        pulled == Pulled::Nothing
    });
    assert!(matches!(other.next(10, LONG).unwrap(), Pulled::Frames(_)));
    assert!(one.statistics().unwrap().ledger.filtered > 0);
}
