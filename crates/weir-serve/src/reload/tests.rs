use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use weir_capture::engines::auto::EngineRequest;
use weir_capture::engines::declaration::Target;
use weir_capture::engines::of_generated;
use weir_client::Connection;
use weir_client::protocol::Open;
use weir_plug::message::RpcError;
use weir_plug::socket::{self, SocketFile};
use weir_plug::{Answer, Application, Credentials, Peer, Server, ServerLimits, Serving, Session};
use weir_ring::memory::Pages;
use weir_vm::GuestMemory;

use super::*;
use crate::guests::GuestFeed;
use crate::guests::relay::tests::hanging;
use crate::guests::relay::{Bell, Relay};
use crate::limits::RELAY_END_TIME_MAX;
use crate::reader::Opening;
use crate::resolved::Resolved;

const LIMIT: Duration = Duration::from_secs(60);

const ALLOWED: &str = "[sources.a]\nsource = 'gen:'\nring_mib = 16\nguests = ['one']\nusers = [7]\n\
                       [guests.one]\nport = '/nowhere/port'\nqmp = '/nowhere/qmp'\n";

fn within_limit(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An application that passes every peer that connects to the test.
struct HandsOver(Mutex<Sender<Arc<Peer>>>);

struct NoMethods;

impl Application for HandsOver {
    fn name(&self) -> &str {
        "capture"
    }

    fn connect(&self, peer: &Arc<Peer>) -> Result<Box<dyn Session>, RpcError> {
        self.0.lock().unwrap().send(Arc::clone(peer)).unwrap();
        Ok(Box::new(NoMethods))
    }
}

impl Session for NoMethods {
    fn call(&mut self, method: &str, _: Value, _: Vec<OwnedFd>) -> Result<Answer, RpcError> {
        Err(RpcError::no_method(method, &[]))
    }
}

/// A daemon, and a client whose feeds belong to a guest. There is no virtual machine.
struct Setup {
    daemon: Daemon,
    peer: Arc<Peer>,
    _client: (Connection, Serving, SocketFile, tempfile::TempDir),
}

impl Setup {
    /// With one source of generated frames.
    fn new(rate: &'static str) -> Setup {
        let resolve = move |_: &str, _: &_| {
            let request =
                EngineRequest { engine: Some(of_generated()), ..EngineRequest::default() };
            Ok(Resolved { target: Target::Text(rate.into()), request, owner_finder: None })
        };
        let daemon = Daemon::new(Config::parse(ALLOWED).unwrap(), resolve, |_| ()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (connected, peers) = mpsc::channel();
        let (listener, file) = socket::bind(&folder.path().join("s"), 0o600).unwrap();
        let server = Server::new("test", ServerLimits::default());
        let server = server.with(Arc::new(HandsOver(Mutex::new(connected))));
        let serving = server.serve(listener).unwrap();
        let connection = Connection::open(&folder.path().join("s")).unwrap();
        // The server connects the client to the application at its first call.
        connection.status().unwrap_err();
        let peer = peers.recv_timeout(LIMIT).unwrap();
        Setup { daemon, peer, _client: (connection, serving, file, folder) }
    }

    /// Opens a feed of the guest `one`, which has no copy yet.
    fn open(&self, asked: Open) -> Arc<Reader> {
        self.open_as(Who::Guest("one".into()), asked)
    }

    fn open_as(&self, who: Who, asked: Open) -> Arc<Reader> {
        let asked = Open { source: "a".into(), ..asked };
        let source = self.daemon.source(&who, "a").unwrap();
        let opening = Opening {
            peer: Arc::clone(&self.peer),
            who,
            asked: asked.clone(),
            number: asked.feed,
            source: "a".into(),
            filter: String::new(),
            mib: source.ring_mib(),
            copied: None,
            key: Some(asked.feed),
        };
        self.daemon.open(opening, &source, &asked).unwrap()
    }

    /// Makes a copy of a feed.
    fn copy(&self, reader: &Reader) {
        let memory = Arc::new(GuestMemory::create(32, Pages::Now).unwrap());
        let bell = Bell { memory: Arc::clone(&memory), ring: Arc::new(|| ()) };
        let (probe, subscription) = (&self.daemon.probe, reader.claim.subscription);
        let relay = Relay::start(probe, subscription, &reader.reads(), 16, bell).unwrap();
        reader.set_copy(GuestFeed::of_no_machine(relay, memory)).unwrap();
    }

    /// Frames that the ledger of a feed counts as captured; for a guest, those in its copy.
    fn captured(&self, reader: &Reader) -> u64 {
        let ledgers = self.daemon.ledgers().unwrap();
        self.daemon.ledger_of(reader, &ledgers).map_or(0, |ledger| ledger.captured)
    }
}

#[test]
fn a_reload_waits_for_copies_that_hang_together_and_with_nothing_held() {
    let setup = Setup::new("rate=1kpps");
    let mut hang_until = Vec::new();
    let hanging = |feed| {
        let reader = setup.open(Open { feed, ..Open::default() });
        let (relay, go_on, memory) = hanging();
        hang_until.push(go_on);
        reader.set_copy(GuestFeed::of_no_machine(relay, memory)).unwrap();
        reader
    };
    let readers: Vec<Arc<Reader>> = (1..=3).map(hanging).collect();
    let user = Credentials { pid: 1, uid: 7, gid: 7, groups: [].into() };
    let process = setup.open_as(Who::Process(user), Open { feed: 4, ..Open::default() });
    let denied = Config::parse(&ALLOWED.replace("'one'", "").replace("[7]", "[]")).unwrap();
    thread::scope(|scope| {
        let begin = Instant::now();
        let reload = scope.spawn(|| setup.daemon.reload(denied));
        within_limit("all are closed", || readers.iter().all(|reader| reader.is_closed()));
        // A client that opens a feed of the source, and an operator who detaches a guest, take these locks.
        drop(setup.daemon.handing("a").read().unwrap());
        drop(setup.daemon.guests.lock_changes());
        within_limit("a process has its account", || process.closed_account().is_some());
        let is_waited_for = |reader: &Arc<Reader>| reader.closed_account().is_none();
        let are_waited_for = readers.iter().all(is_waited_for);
        // If the limit has passed because the machine is slow, this cannot be checked.
        let is_in_time = begin.elapsed() < RELAY_END_TIME_MAX;
        assert!(are_waited_for || !is_in_time, "the copies were waited for");
        assert_eq!(reload.join().unwrap().unwrap(), 4);
        assert!(begin.elapsed() < 3 * RELAY_END_TIME_MAX, "one after the other");
    });
    assert!(readers.iter().all(|reader| reader.closed_account().is_some()));
    drop(hang_until);
}

#[test]
fn a_guests_feed_that_is_closed_while_it_moves_is_accounted_by_the_rings_that_it_moves_to() {
    let setup = Setup::new("rate=200kpps");
    let daemon = &setup.daemon;
    let reader = setup.open(Open { feed: 1, sample: Some(10), ..Open::default() });
    setup.copy(&reader);
    within_limit("frames", || setup.captured(&reader) > 2000);
    let ledger = thread::scope(|scope| {
        let handing = daemon.handing("a");
        let alone = handing.write().unwrap();
        assert!(daemon.renew(&reader, reader.feed()), "it reads fresh rings");
        let captured = setup.captured(&reader);
        within_limit("frames of those", || setup.captured(&reader) > captured + 2000);
        let closing = scope.spawn(|| daemon.close(&reader));
        // `close` must wait for the lock. Otherwise it would close the feed with the counts of its previous rings.
        let begin = Instant::now();
        while !reader.is_closed() && begin.elapsed() < Duration::from_millis(300) {
            thread::yield_now();
        }
        daemon.follow(&reader);
        drop(alone);
        closing.join().unwrap().ledger.unwrap()
    });
    assert!(ledger.captured > 4000, "{ledger:?}");
    // Nine of ten frames are sampled out, in each ring.
    assert!(ledger.sampled.abs_diff(9 * ledger.captured) < 100, "{ledger:?}");
    assert_eq!(ledger.drops["relay"], 0, "{ledger:?}");
}

#[test]
fn a_source_that_ends_before_its_copy_begins_is_copied_whole() {
    let setup = Setup::new("frames=500");
    let reader = setup.open(Open { feed: 1, ..Open::default() });
    within_limit("it ends", || setup.daemon.board.closed(reader.feed()).is_some());
    setup.copy(&reader);
    let ledger = setup.daemon.close(&reader).ledger.unwrap();
    assert_eq!((ledger.offered, ledger.captured, ledger.drops["relay"]), (500, 500, 0));
}

#[test]
fn a_feed_that_moves_while_its_ledger_cannot_be_read_is_accounted_by_the_last_one_of_its_rings() {
    let setup = Setup::new("frames=5000");
    let (daemon, reader) =
        (&setup.daemon, setup.open(Open { sample: Some(10), ..Open::default() }));
    within_limit("it ends", || daemon.board.closed(reader.feed()).flatten().is_some());
    daemon.board.moved(&reader, reader.feed(), Vec::new(), None, true);
    let ledger = reader.account(&reader.reads(), &weir_ring::Ledger::default());
    assert_eq!((ledger.offered, ledger.captured, ledger.sampled), (5000, 500, 4500), "{ledger:?}");
}
