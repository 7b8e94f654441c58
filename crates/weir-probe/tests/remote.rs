//! Consumers in other processes: attached, moved to fresh rings, and withdrawn.
//!
//! The other process is this very program, run again for the one test [`reader_process`].

mod common;
#[path = "../../weir-ring/tests/common/process.rs"]
mod process;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use weir_capture::generator::{GenSpec, MemGen, Rate};
use weir_capture::{CaptureError, Feed, Setup};
use weir_probe::core::Event;
use weir_probe::limits::REMOTE_CHANNELS_MAX;
use weir_probe::{Joined, Probe, ProbeError, RemoteConsumer, SourceSpec, Update};
use weir_ring::memory::Trust;
use weir_ring::wake::{RINGS_MAX, Sleeper, Waker, Woken};
use weir_ring::{Batch, Poll, Reader, Start, pass};

use common::{LIMIT, wait_for};
use process::{Other, PATIENCE, ROLE};

/// Nanoseconds between the timestamps of two frames. A ring holds ten seconds of them.
const STEP_NS: u64 = 200_000;
const RINGS: usize = 2;
/// Number of frames of a feed that the reader reads before its first report.
const SOME: u64 = 100;

fn slow() -> SourceSpec {
    SourceSpec::new("gen:", |feeds| {
        let setup = Setup {
            feeds,
            ring_bytes: 8 << 20,
            promiscuous: false,
            may_change: true,
            ..Setup::default()
        };
        let rate = Rate::Pps(1e9 / STEP_NS as f64);
        let spec = GenSpec { rate, step_ns: Some(STEP_NS), ..GenSpec::default() };
        Ok(Box::new(MemGen::open(spec, setup, false)?))
    })
}

/// Not a test by itself: the reader. It has channels for two feeds. It reads each feed to its end, checks that no
/// frame is missing, and reports the numbers of the first and the last frame: after [`SOME`] frames, and at the end.
#[test]
fn reader_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let sleeper = Sleeper::new(RINGS).unwrap();
    (0..2).for_each(|_| pass::send_channel(&stream, &sleeper).unwrap());
    // Until the stream ends.
    while let Ok(rings) = pass::receive_rings(&stream, 1, Trust::Anybody) {
        let mut line = [0];
        stream.read_exact(&mut line).unwrap();
        let mut reader = Reader::new(&rings[0], Start::Oldest).unwrap();
        let (mut batch, mut first, mut next) = (Batch::new(), None, 0);
        let mut has_told = false;
        loop {
            match reader.poll(&mut batch).unwrap() {
                Poll::Frames(_) => {
                    for record in batch.records() {
                        let number = record.meta.ts_ns / STEP_NS;
                        assert!(first.is_none() || number == next, "{number}, not {next}");
                        first.get_or_insert(number);
                        next = number + 1;
                    }
                }
                Poll::Lapped(frames) => panic!("{frames} lapped"),
                Poll::Empty => {
                    let lines = [(usize::from(line[0]), &reader)];
                    let woken = sleeper.sleep_on(lines.into_iter(), 1, PATIENCE).unwrap();
                    assert_ne!(woken, Woken::Limit);
                }
                Poll::Closed => break,
            }
            let first = first.unwrap_or(next);
            if next - first > SOME && !std::mem::replace(&mut has_told, true) {
                tell(&mut stream, first, next - 1);
            }
        }
        tell(&mut stream, first.expect("it had some"), next - 1);
    }
}

fn tell(stream: &mut UnixStream, first: u64, last: u64) {
    stream.write_all(&[first.to_le_bytes(), last.to_le_bytes()].concat()).unwrap();
}

/// The numbers in the reader's next report.
fn told(other: &mut Other) -> (u64, u64) {
    let mut numbers = [[0; 8]; 2];
    numbers.iter_mut().for_each(|number| other.stream.read_exact(number).unwrap());
    (u64::from_le_bytes(numbers[0]), u64::from_le_bytes(numbers[1]))
}

/// Starts another process, and adds it to the probe as a consumer with two channels.
fn start(probe: &Probe) -> (Other, RemoteConsumer) {
    let other = Other::start("reader_process", "reader", &[]);
    let remote = probe.add_remote_consumer(RINGS).unwrap();
    for number in 0..2 {
        let waker = pass::receive_waker(&other.stream, RINGS).unwrap();
        assert_eq!(remote.give_channel(waker).unwrap(), number);
    }
    (other, remote)
}

fn hand_over(other: &mut Other, joined: &Joined) {
    pass::send_rings(&other.stream, &joined.rings).unwrap();
    other.stream.write_all(&[joined.first_line as u8]).unwrap();
}

#[test]
fn a_withdrawn_process_gets_no_frame_more_and_the_others_miss_none() {
    let (probe, _events) = Probe::new().unwrap();
    let (source, own) = probe.open(slow(), vec![Feed::default().into()]).unwrap();
    let (mut stays, staying) = start(&probe);
    let (mut goes, going) = start(&probe);
    for (other, remote) in [(&mut stays, &staying), (&mut goes, &going)] {
        probe.attach(remote.id, own[0]).unwrap();
        let joined = remote.wait_for_feed(LIMIT).expect("it has joined");
        assert_eq!(joined.channel, Some(0));
        hand_over(other, &joined);
    }
    let old = probe.rings_of(own[0]).remove(0);
    probe.start(source).unwrap();
    assert_eq!(told(&mut stays).0, told(&mut goes).0);

    probe.withdraw(going.id).unwrap();
    let written = old.frames_written();
    let fresh = staying.wait_for_feed(LIMIT).expect("it has joined");
    assert_eq!(fresh.channel, Some(1));
    hand_over(&mut stays, &fresh);
    let (first, last) = told(&mut stays);
    assert_eq!(last - first + 1, written);
    // The withdrawn process has read the frames written before, is told of no further feed, and can give no further
    // channel.
    assert_eq!(told(&mut goes), (first, last));
    let [page, socket] = Sleeper::new(RINGS).unwrap().channel().unwrap();
    let late = going.give_channel(Waker::attach(page, socket, RINGS).unwrap()).unwrap_err();
    assert!(matches!(late, ProbeError::Capture(CaptureError::Ended)), "{late}");
    assert!(
        !going
            .take_updates()
            .iter()
            .any(|update| matches!(update, Update::Joined(joined) if joined.feed == fresh.feed))
    );
    assert_eq!(told(&mut stays).0, last + 1);
    assert_eq!(old.frames_written(), written);

    probe.close(source).unwrap();
    assert_eq!(told(&mut stays).0, last + 1);
    for mut other in [stays, goes] {
        other.stream.shutdown(Shutdown::Both).unwrap();
        assert!(other.child.wait().unwrap().success());
    }
}

#[test]
fn a_process_without_a_channel_is_not_attached_until_it_gives_one() {
    let (probe, events) = Probe::new().unwrap();
    let (source, own) = probe.open(slow(), vec![Feed::default().into()]).unwrap();
    let remote = probe.add_remote_consumer(RINGS).unwrap();
    let said = probe.attach(remote.id, own[0]).unwrap_err().to_string();
    assert!(said.contains("has no channel left"), "{said}");

    let channel = |lines| {
        let [page, socket] = Sleeper::new(lines).unwrap().channel().unwrap();
        Waker::attach(page, socket, lines).unwrap()
    };
    let narrow = remote.give_channel(channel(RINGS - 1)).unwrap_err();
    assert!(matches!(narrow, ProbeError::Capture(CaptureError::NarrowWaker { .. })), "{narrow}");
    assert_eq!(remote.give_channel(channel(RINGS)).unwrap(), 0);
    probe.attach(remote.id, own[0]).unwrap();
    let old = remote.wait_for_feed(LIMIT).expect("it has joined");

    // The process would be moved to fresh rings, but has no channel left to be woken there.
    let goes = probe.add_consumer(RINGS).unwrap();
    probe.attach(goes.id, own[0]).unwrap();
    probe.withdraw(goes.id).unwrap();
    let is_told = |event| match event {
        Event::NotAttached(of, consumer, ..) => Some((of, consumer)),
        _ => None,
    };
    assert_eq!(wait_for(&events, is_told), (source, remote.id));
    let left = remote.wait_for_update(LIMIT);
    assert!(matches!(left, Some(Update::Left(feed, _)) if feed == old.feed));

    assert_eq!(remote.give_channel(channel(RINGS)).unwrap(), 1);
    probe.attach(remote.id, own[0]).unwrap();
    let fresh = remote.wait_for_feed(LIMIT).expect("it has joined");
    assert_eq!(fresh.channel, Some(1));
    assert_ne!(fresh.feed, old.feed);
}

#[test]
fn a_process_that_is_detached_is_not_told_that_the_writer_has_died() {
    let (probe, _events) = Probe::new().unwrap();
    let (_, own) = probe.open(slow(), vec![Feed::default().into()]).unwrap();
    let stays = probe.add_consumer(RINGS).unwrap();
    probe.attach(stays.id, own[0]).unwrap();
    let remote = probe.add_remote_consumer(1).unwrap();
    let sleeper = Sleeper::new(1).unwrap();
    let give = || {
        let [page, socket] = sleeper.channel().unwrap();
        remote.give_channel(Waker::attach(page, socket, 1).unwrap()).unwrap()
    };
    give();
    probe.attach(remote.id, own[0]).unwrap();
    let joined = remote.wait_for_feed(LIMIT).expect("it has joined");
    // The channel stays in use as long as the process reads the feed.
    remote.let_go_of_channel(0);
    probe.detach(remote.id, own[0]).unwrap();
    assert!(
        matches!(remote.wait_for_update(LIMIT), Some(Update::Left(feed, _)) if feed == joined.feed)
    );
    assert_eq!(sleeper.find_gone_writer(), None);
    // Its lines are not given to another feed either, until the process lets go of the channel.
    give();
    let said = probe.attach(remote.id, own[0]).unwrap_err().to_string();
    assert!(said.contains("has no room for 1 more"), "{said}");
    remote.let_go_of_channel(0);
    assert_eq!(sleeper.find_gone_writer(), Some(0));
    probe.attach(remote.id, own[0]).unwrap();
    assert_eq!(remote.wait_for_feed(LIMIT).expect("it has joined").channel, Some(1));
    // Dropping the consumer hangs up the channels that it still has.
    drop(remote);
    assert_eq!(sleeper.find_gone_writer(), Some(1));
}

#[test]
fn a_process_that_reads_nothing_holds_up_no_writer_that_waits_for_readers() {
    let (probe, events) = Probe::new().unwrap();
    let spec = SourceSpec::new("gen:", |feeds| {
        let setup = Setup { feeds, ring_bytes: 8 << 20, promiscuous: false, ..Setup::default() };
        // Several times the capacity of a ring.
        let spec = GenSpec { frames: Some(1_000_000), ..GenSpec::default() };
        Ok(Box::new(MemGen::open(spec, setup, true)?))
    });
    let (source, own) = probe.open(spec, vec![Feed::default().into()]).unwrap();
    let remote = probe.add_remote_consumer(RINGS).unwrap();
    let [page, socket] = Sleeper::new(RINGS).unwrap().channel().unwrap();
    remote.give_channel(Waker::attach(page, socket, RINGS).unwrap()).unwrap();
    probe.attach(remote.id, own[0]).unwrap();
    assert!(remote.wait_for_feed(LIMIT).expect("it has joined").progress.is_none());
    probe.start(source).unwrap();
    let closed = |event| matches!(event, Event::FeedClosed(..)).then_some(());
    wait_for(&events, closed);
}

#[test]
fn what_no_consumer_in_another_process_can_be_is_refused() {
    let (probe, _events) = Probe::new().unwrap();
    for lines in [0, RINGS_MAX + 1, usize::MAX] {
        assert!(probe.add_remote_consumer(lines).is_err(), "{lines} lines");
    }
    let remote = probe.add_remote_consumer(1).unwrap();
    let sleeper = Sleeper::new(1).unwrap();
    for count in 0..=REMOTE_CHANNELS_MAX {
        let [page, socket] = sleeper.channel().unwrap();
        let given = remote.give_channel(Waker::attach(page, socket, 1).unwrap());
        assert_eq!(given.is_ok(), count < REMOTE_CHANNELS_MAX, "{count}");
    }
}
