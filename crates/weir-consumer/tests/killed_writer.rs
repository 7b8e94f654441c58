//! A writer in another process is killed while consumers read its ring.
//!
//! The writer process runs this test program again, with [`writer_process`] as its only test. Its role is in an
//! environment variable, and its socket is its standard input.

#[path = "../../weir-ring/tests/common/process.rs"]
mod process;

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use weir_consumer::thread::{Finished, Plan, Running, spawn};
use weir_consumer::{Consumer, ConsumerError, Count, JoinedFeed, Null, Ordered, Sink, Static};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::{Meta, Record};
use weir_ring::memory::{self, Trust};
use weir_ring::wake::{Sleeper, Waker};
use weir_ring::{Clock, Mapping, Ring, RingError, RingSpec, Writer, WriterKind, pass};

use process::{Other, PATIENCE, ROLE};

impl Other {
    /// The ring of the writer process, and a sleeper that the writer wakes.
    fn ring(&self) -> (Ring<Mapping>, Sleeper) {
        let ring = pass::receive_rings(&self.stream, 1, Trust::Anybody).unwrap().pop().unwrap();
        let sleeper = Sleeper::new(2).unwrap();
        let [page, socket] = sleeper.channel().unwrap();
        pass::send(&self.stream, &[page.as_fd(), socket.as_fd()]).unwrap();
        (ring, sleeper)
    }

    /// Makes the writer begin to write.
    fn go(&self) {
        (&self.stream).write_all(b"g").unwrap();
    }

    /// Sends SIGKILL to the process, and waits until it has ended.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn spec() -> RingSpec {
    RingSpec {
        data_blocks: 4,
        interfaces: vec![Interface { name: "eth0".into(), link_type: 1, ..Interface::default() }],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    }
}

/// The writer process; does nothing in a normal run of the tests. In the role `busy`, it writes until it is killed. In
/// the role `quiet`, it writes a hundred frames; in the role `closing`, it then also closes its ring.
#[test]
fn writer_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let ring = memory::create_memfd("weir-test", &spec()).unwrap();
    pass::send(&stream, &[ring.memory().as_fd()]).unwrap();
    let [page, socket]: [OwnedFd; 2] = pass::receive(&stream, 2).unwrap().try_into().unwrap();
    let mut waker = Waker::attach(page, socket, 2).unwrap();
    let mut writer = Writer::new(ring);
    (&stream).read_exact(&mut [0]).unwrap();
    while role == "busy" || writer.frames() < 100 {
        for _ in 0..10 {
            let meta = Meta { ts_ns: writer.frames(), wire_len: 60, ..Meta::default() };
            writer.push(&meta, &[7; 60]);
        }
        writer.publish();
        waker.wake_if_due(0, writer.frames());
    }
    if role == "closing" {
        writer.close();
        waker.wake();
        (&stream).write_all(b"c").unwrap();
    }
    std::thread::sleep(PATIENCE);
}

/// An output that counts the frames that it takes. They count as kept from the next flush on.
#[derive(Default)]
struct Counting {
    next: u64,
    frames: u64,
    kept: u64,
}

impl Sink for Counting {
    fn describe(&mut self, _: u32, interface: &Interface, _: &str) -> Result<(), ConsumerError> {
        assert_eq!(interface.name, "eth0");
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        assert!(record.meta.ts_ns >= self.next && record.frame == [7; 60], "{:?}", record.meta);
        self.next = record.meta.ts_ns + 1;
        self.frames += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.kept = self.frames;
        Ok(())
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        self.flush()
    }

    fn kept(&self) -> Count {
        Count { frames: self.kept, wire_bytes: self.kept * 60 }
    }
}

/// Starts a consumer of the ring. After each step, sends its number of delivered frames on `progress`; after its end,
/// sends `u64::MAX`.
fn start(
    consumer: Box<dyn Consumer + Send>,
    ring: &Ring<Mapping>,
    sleeper: Sleeper,
    progress: Sender<u64>,
) -> Running<dyn Consumer + Send> {
    let mut feeds = JoinedFeed::in_order(vec![vec![ring.clone()]]);
    feeds[0].channel = Some(0);
    let source = Static::new(sleeper, feeds);
    let ended = progress.clone();
    let plan = Plan {
        slack: Duration::from_millis(8),
        progress: Box::new(move |consumer: &(dyn Consumer + Send + 'static)| {
            let _ = progress.send(consumer.delivered().frames);
        }),
        ended: Box::new(move |_| {
            let _ = ended.send(u64::MAX);
        }),
        ..Plan::new(Box::new(source)).unwrap()
    };
    spawn(consumer, plan).unwrap()
}

/// For each kind of consumer, starts a writer process in this role, and kills it when the consumer has had `frames`
/// frames.
fn kill_after(
    role: &str,
    frames: u64,
    check: impl Fn(Finished<dyn Consumer + Send>, &Ring<Mapping>),
) {
    let ordered = || -> Box<dyn Consumer + Send> {
        Box::new(Ordered::<_>::new(Duration::from_millis(8), Counting::default()))
    };
    for consumer in [Box::new(Null::new()), ordered()] {
        let mut other = Other::start("writer_process", role, &[]);
        let (ring, sleeper) = other.ring();
        let (progress, told) = channel();
        let running = start(consumer, &ring, sleeper, progress);
        // Wait until the consumer has joined: the first frames might be overwritten before it reads them.
        assert_eq!(told.recv_timeout(PATIENCE), Ok(0));
        other.go();
        while told.recv_timeout(PATIENCE).expect("progress") < frames {}
        match role {
            "closing" => (&other.stream).read_exact(&mut [0]).unwrap(),
            _ => assert!(!running.has_ended()),
        }
        other.kill();
        // The consumer ends by itself, without a call that stops it.
        while told.recv_timeout(PATIENCE).expect("its end") != u64::MAX {}
        check(running.finish(), &ring);
    }
}

#[test]
fn a_writer_that_is_killed_ends_its_consumers_with_an_error_and_a_whole_account() {
    kill_after("busy", 50_000, |finished, ring| {
        let written = ring.frames_written();
        let Finished { consumer, failure, .. } = finished;
        let Some(ConsumerError::Ring(RingError::WriterGone { frames })) = failure.as_deref() else {
            panic!("{failure:?}");
        };
        assert_eq!(*frames, written);
        let delivered = consumer.delivered();
        let accounted = delivered.frames + delivered.lapped;
        // If the writer is killed between the stores that publish a burst, the burst's 10 frames can be read, but
        // the ring's count does not include them.
        assert!((written..=written + 10).contains(&accounted), "{accounted} of {written}");
        assert_eq!(consumer.rings().unread(), 0);
        assert_eq!(consumer.kept().frames, delivered.frames, "what was taken is out");
    });
}

#[test]
fn a_consumer_that_sleeps_hears_at_once_that_its_writer_was_killed() {
    kill_after("quiet", 100, |finished, _| {
        assert!(matches!(
            finished.failure.as_deref(),
            Some(ConsumerError::Ring(RingError::WriterGone { frames: 100 }))
        ));
        assert_eq!(finished.consumer.delivered().frames, 100);
    });
}

#[test]
fn a_writer_that_closed_its_ring_before_it_was_killed_is_no_error() {
    kill_after("closing", 100, |finished, _| {
        assert!(finished.failure.is_none());
        assert_eq!(finished.consumer.delivered().frames, 100);
    });
}

#[test]
fn rings_of_other_writers_are_read_on_after_one_was_killed() {
    let mut other = Other::start("writer_process", "quiet", &[]);
    let (ring, sleeper) = other.ring();
    let mut own = Writer::new(memory::create_memfd("weir-test", &spec()).unwrap());
    let mut waker = sleeper.waker().unwrap();
    let mut feeds = JoinedFeed::in_order(vec![vec![ring], vec![own.ring().clone()]]);
    feeds[0].channel = Some(0);
    let mut null = Null::new();
    feeds.into_iter().for_each(|feed| null.join(feed).unwrap());
    let (progress, told) = channel();
    let plan = Plan {
        progress: Box::new(move |consumer: &Null| {
            // The delivered frames, and the number of rings that may get more.
            let _ = progress.send((consumer.delivered().frames, consumer.rings().readers().len()));
        }),
        ..Plan::new(Box::new(Static::new(sleeper, Vec::new()))).unwrap()
    };
    let running = spawn(Box::new(null), plan).unwrap();
    other.go();
    while told.recv_timeout(PATIENCE).expect("progress") != (100, 2) {}
    other.kill();
    while told.recv_timeout(PATIENCE).expect("progress") != (100, 1) {}
    own.push(&Meta { wire_len: 60, ..Meta::default() }, &[7; 60]);
    own.close();
    waker.wake_if_due(1, 1);
    waker.wake();
    while told.recv_timeout(PATIENCE).is_ok() {}
    let Finished { consumer, failure, .. } = running.finish();
    assert!(matches!(
        failure.as_deref(),
        Some(ConsumerError::Ring(RingError::WriterGone { frames: 100 }))
    ));
    assert_eq!((consumer.delivered().frames, consumer.rings().unread()), (101, 0));
}
