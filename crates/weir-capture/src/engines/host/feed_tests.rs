//! The final ledger of a feed whose rings or whose daemon no longer exist.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use weir_client::protocol::{self, APPLICATION, Closed, Opened, Statistics};
use weir_client::{Address, Connection};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_frame::record::Meta;
use weir_plug::{
    Answer, Application, Peer, RpcError, Server, ServerLimits, Serving, Session, socket,
};
use weir_ring::wake::Sleeper;
use weir_ring::{Batch, Clock, Mapping, Reader, Ring, RingSpec, Start, Words, Writer, WriterKind};

use super::control::HostControl;
use crate::feed::Feed;
use crate::feed::control::{FeedControl, FeedSlot};

/// A daemon with one ring. Its ledger has the numbers of captured and filtered frames in `told`.
#[derive(Clone)]
struct Daemon {
    ring: Ring<Mapping>,
    told: Arc<Mutex<(u64, u64)>>,
}

impl Daemon {
    fn ledger(&self) -> protocol::Ledger {
        let (captured, filtered) = *self.told.lock().unwrap();
        let offered = captured.saturating_add(filtered);
        protocol::Ledger { offered, captured, filtered, ..protocol::Ledger::default() }
    }
}

impl Application for Daemon {
    fn name(&self) -> &str {
        APPLICATION
    }

    fn connect(&self, _: &Arc<Peer>) -> Result<Box<dyn Session>, RpcError> {
        Ok(Box::new(self.clone()))
    }
}

impl Session for Daemon {
    fn call(&mut self, method: &str, _: Value, _: Vec<OwnedFd>) -> Result<Answer, RpcError> {
        let (ledger, mut descriptors) = (Some(self.ledger()), Vec::new());
        let result = match method {
            "open" => {
                let fd = self.ring.memory().as_fd().try_clone_to_owned();
                descriptors.push(fd.map_err(|error| RpcError::refused(error.to_string()))?);
                let opened = Opened { key: 1, from: vec![2], ..Opened::default() };
                json!(opened)
            }
            "ledger" => json!(Statistics { feed: 1, source: "lan".into(), ledger }),
            "close" => json!(Closed { key: 1, ended: false, until: vec![0], ledger }),
            _ => json!({}),
        };
        Ok(Answer { result, descriptors })
    }
}

struct Setup {
    daemon: Daemon,
    serving: Option<Serving>,
    control: HostControl,
    slot: FeedSlot,
    writer: Writer<Mapping>,
    _folder: tempfile::TempDir,
    _file: socket::SocketFile,
}

/// A feed that begins at the ring's third frame.
fn setup() -> Setup {
    let spec = RingSpec {
        data_blocks: 4,
        interfaces: vec![Interface {
            link_type: LINKTYPE_ETHERNET,
            snaplen: 65535,
            ..Interface::default()
        }],
        cpu: None,
        clock: Clock::Realtime,
        writer: WriterKind::User,
    };
    let ring = weir_ring::memory::create_memfd("test", &spec).unwrap();
    let daemon = Daemon { ring: ring.clone(), told: Arc::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let (listener, file) = socket::bind(&path, 0o600).unwrap();
    let server = Server::new("test", ServerLimits::default()).with(Arc::new(daemon.clone()));
    let serving = Some(server.serve(listener).unwrap());
    let mut writer = Writer::new(ring);
    push(&mut writer, 2);
    let address = Address { source: "lan".into(), part: None };
    let connection = Connection::open(&path).unwrap();
    let control = HostControl::new(connection, path, address, false);
    let slot = control.add(Feed::default()).unwrap().slot;
    Setup { daemon, serving, control, slot, writer, _folder: folder, _file: file }
}

fn push(writer: &mut Writer<Mapping>, frames: usize) {
    let meta = Meta { interface_id: 0, ts_ns: 1, wire_len: 60, flags: None, queue: None };
    for _ in 0..frames {
        writer.push(&meta, &[0; 60]);
    }
    writer.publish();
}

/// Fills the ring's memory with zeros: a mapping of an unplugged device reads like this.
fn take_away(ring: &Ring<Mapping>) {
    ring.memory().words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

/// Stops the feed. Returns the captured frames of its final ledger, which must balance, and where it ends
/// in its ring.
fn end(setup: &Setup) -> (u64, Option<Vec<u64>>) {
    setup.control.stop();
    let ledger = setup.control.ledger(setup.slot).unwrap();
    assert_eq!(ledger.unexplained(), 0, "{ledger:?}");
    (ledger.captured, setup.control.ends(setup.slot))
}

/// Attaches a consumer, reads `frames` frames, and reports the position with [`Sleeper::note_position`], as a
/// reader does that is awake.
fn read(setup: &Setup, sleeper: &Sleeper, frames: u64) {
    let waker = sleeper.waker().unwrap();
    setup.control.attach(setup.slot, waker, 1).unwrap();
    let rings = setup.control.feeds().remove(0).rings;
    let mut reader = Reader::new(&rings[0], Start::Ordinal(2)).unwrap();
    let mut batch = Batch::new();
    reader.poll(&mut batch).unwrap();
    assert_eq!(reader.ordinal(), 2 + frames);
    sleeper.note_position(1, reader.ordinal());
}

#[test]
fn a_ring_that_is_taken_away_has_had_what_its_readers_have_read() {
    for is_daemon_there in [false, true] {
        let mut setup = setup();
        push(&mut setup.writer, 5);
        let sleeper = Sleeper::new(2).unwrap();
        read(&setup, &sleeper, 5);
        if !is_daemon_there {
            setup.serving = None;
        }
        take_away(&setup.daemon.ring);
        assert_eq!(end(&setup), (5, Some(vec![7])), "{is_daemon_there}");
    }
}

#[test]
fn a_ring_that_is_taken_away_has_had_what_the_daemon_told() {
    let mut setup = setup();
    push(&mut setup.writer, 5);
    *setup.daemon.told.lock().unwrap() = (5, 0);
    assert_eq!(setup.control.ledger(setup.slot).unwrap().captured, 5);
    take_away(&setup.daemon.ring);
    setup.serving = None;
    assert_eq!(end(&setup), (5, Some(vec![7])));
}

#[test]
fn a_daemon_that_has_gone_leaves_what_its_ring_has() {
    let mut setup = setup();
    push(&mut setup.writer, 5);
    setup.serving = None;
    assert_eq!(end(&setup), (5, Some(vec![7])));
}

#[test]
fn counts_that_nobody_can_have_overflow_nothing() {
    for is_daemon_there in [false, true] {
        let mut setup = setup();
        push(&mut setup.writer, 5);
        *setup.daemon.told.lock().unwrap() = (u64::MAX, u64::MAX);
        setup.control.ledger(setup.slot).unwrap();
        if !is_daemon_there {
            setup.serving = None;
        }
        take_away(&setup.daemon.ring);
        setup.control.stop();
        let mut sum = setup.control.ledger(setup.slot).unwrap();
        sum.add(&sum.clone());
        assert!(sum.captured > 10 && sum.offered > 10, "{is_daemon_there}: {sum:?}");
    }
}
