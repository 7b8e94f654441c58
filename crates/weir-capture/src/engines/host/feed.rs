//! One feed of a daemon, and its account when it ends.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use weir_client::{RemoteFeed, protocol};
use weir_ring::geometry::WriterWord;
use weir_ring::wake::ReadPositions;
use weir_ring::{Ledger, Ring};

use super::control::lock;
use super::names::interned;
use crate::feed::control::{FeedHandle, FeedSlot, WakerSlot};
use crate::feed::location::FilterLocation;
use crate::limits::WRITER_END_MAX;

/// An open feed.
pub(super) struct HostFeed {
    pub(super) remote: RemoteFeed,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    /// By this process's numbers.
    pub(super) sleepers: BTreeMap<WakerSlot, HostSleeper>,
    pub(super) next: u32,
    /// The ledger as it was read last.
    pub(super) latest: Ledger,
    /// Once it has stopped: where it ends in its rings, if others go on writing them.
    pub(super) end: Option<Option<Vec<u64>>>,
}

/// A consumer that the daemon wakes.
pub(super) struct HostSleeper {
    /// The daemon's number of it.
    pub(super) number: u64,
    /// How far it has read; the line of the first ring.
    pub(super) positions: ReadPositions,
    pub(super) first_line: usize,
}

impl HostFeed {
    /// Closes it, once. A daemon that has gone leaves what its rings have, and the ledger that was read last.
    pub(super) fn stop(&self) {
        let mut state = lock(&self.state);
        if state.end.is_some() {
            return;
        }
        let closed = self.remote.close();
        if closed.is_err() {
            self.remote.forget();
        }
        self.wait_for_writer(closed.is_err());
        state.sleepers.values().for_each(|sleeper| self.note_read(sleeper));
        let written = self.remote.frames_written();
        let is_taken_away = self.is_taken_away();
        let (told, until) = match closed {
            Ok(closed) => {
                let until = is_taken_away.then(|| max_of(&written, &closed.until));
                let until = until.or((!closed.ended).then_some(closed.until));
                (closed.ledger.map(ledger_of), until)
            }
            Err(_) => (None, Some(written)),
        };
        let from = self.remote.opened().from.iter().chain(std::iter::repeat(&0));
        let read =
            until.iter().flatten().zip(from).map(|(until, from)| until.saturating_sub(*from));
        let captured = read.fold(0, u64::saturating_add);
        state.latest = match told {
            Some(mut ledger) => {
                // What its readers had before the memory was taken away was captured, whatever is told.
                let untold = captured.saturating_sub(ledger.captured);
                if is_taken_away {
                    ledger.captured = ledger.captured.saturating_add(untold);
                    ledger.offered = ledger.offered.saturating_add(untold);
                }
                ledger
            }
            None => {
                let mut ledger = Ledger { captured, ..std::mem::take(&mut state.latest) };
                // Nobody can tell what came since and was left out or lost.
                ledger.offered = ledger.accounted_for();
                ledger
            }
        };
        state.end = Some(until);
    }

    /// Waits for the last frames of rings in a device, whose writer may outlive the daemon here: the machine's host
    /// closes them when it hears of its end. Where the host has taken the device away, nothing closes them, and
    /// readers say within the time how far they have read.
    fn wait_for_writer(&self, has_daemon_ended: bool) {
        let (rings, begin) = (self.remote.rings(), Instant::now());
        let is_in_device = has_daemon_ended && !self.remote.opened().parts.is_empty();
        let waits = is_in_device || self.is_taken_away();
        while waits && !rings.iter().all(Ring::is_closed) && begin.elapsed() < WRITER_END_MAX {
            thread::sleep(Duration::from_millis(1));
            // Seen now: the device may be taken away next.
            let _ = self.remote.frames_written();
        }
    }

    /// Whether a ring had frames, and reads as if it never had any: the device that it is in was unplugged.
    fn is_taken_away(&self) -> bool {
        let written = self.remote.frames_written();
        let mut rings = self.remote.rings().iter().zip(written);
        rings.any(|(ring, written)| written > 0 && ring.writer_word(WriterWord::Opened) == 0)
    }

    /// Notes how far a consumer has read. Not in a guest's broker: its consumers are other users' processes, of whom
    /// none is to change what another is told.
    pub(super) fn note_read(&self, sleeper: &HostSleeper) {
        if self.remote.opened().region.is_none() {
            for ring in 0..self.remote.rings().len() {
                let ordinal = sleeper.positions.position(sleeper.first_line + ring);
                self.remote.note_read(ring, ordinal);
            }
        }
    }

    pub(super) fn handle(&self, slot: FeedSlot) -> FeedHandle {
        let (rings, from) = (self.remote.rings().to_vec(), self.remote.opened().from.clone());
        FeedHandle { slot, rings, from, location: FilterLocation::Nowhere, pace: None }
    }
}

/// The greater of each two.
fn max_of(these: &[u64], those: &[u64]) -> Vec<u64> {
    let those = those.iter().copied().chain(std::iter::repeat(0));
    these.iter().zip(those).map(|(one, other)| other.max(*one)).collect()
}

/// A daemon's ledger. Sums of what a hostile one tells do not overflow.
pub(super) fn ledger_of(told: protocol::Ledger) -> Ledger {
    const COUNT_MAX: u64 = u64::MAX >> 16;
    let bound = |count: u64| count.min(COUNT_MAX);
    let mut drops = BTreeMap::new();
    for (name, count) in told.drops {
        let own: &mut u64 = drops.entry(interned(&name)).or_default();
        *own = bound(own.saturating_add(bound(count)));
    }
    Ledger {
        offered: bound(told.offered),
        filtered: bound(told.filtered),
        filtered_uncounted: told.filtered_uncounted,
        blocked: bound(told.blocked),
        sampled: bound(told.sampled),
        captured: bound(told.captured),
        kept_bytes: bound(told.kept_bytes),
        wire_bytes: bound(told.wire_bytes),
        super_frames: bound(told.super_frames),
        drops,
        missed_before: told.missed_before.map(bound),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};
    use weir_client::protocol::{APPLICATION, Closed, Opened, Statistics};
    use weir_client::{Address, Connection};
    use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
    use weir_frame::record::Meta;
    use weir_plug::{
        Answer, Application, Peer, RpcError, Server, ServerLimits, Serving, Session, socket,
    };
    use weir_ring::wake::Sleeper;
    use weir_ring::{Batch, Clock, Mapping, Reader, RingSpec, Start, Words, Writer, WriterKind};

    use super::super::control::HostControl;
    use super::*;
    use crate::feed::Feed;
    use crate::feed::control::FeedControl;

    /// A daemon of one ring, whose ledger says this many captured frames.
    #[derive(Clone)]
    struct Daemon {
        ring: Ring<Mapping>,
        told: Arc<Mutex<u64>>,
    }

    impl Daemon {
        fn ledger(&self) -> protocol::Ledger {
            let captured = *self.told.lock().unwrap();
            protocol::Ledger { offered: captured, captured, ..protocol::Ledger::default() }
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
                    descriptors.push(fd.map_err(|error| RpcError::refused(&error.to_string()))?);
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

    /// A feed that begins with the ring's third frame.
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

    /// As a mapping of a device reads that was unplugged.
    fn take_away(ring: &Ring<Mapping>) {
        ring.memory().words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Frames of the feed that were captured by its last ledger, which closes, and where it ends in its ring.
    fn end(setup: &Setup) -> (u64, Option<Vec<u64>>) {
        setup.control.stop();
        let ledger = setup.control.ledger(setup.slot).unwrap();
        assert_eq!(ledger.unexplained(), 0, "{ledger:?}");
        (ledger.captured, setup.control.ends(setup.slot))
    }

    /// A reader that sleeps says by that how far it has read, as [`Sleeper::note_position`] does of one that is awake.
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
        *setup.daemon.told.lock().unwrap() = 5;
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
}
