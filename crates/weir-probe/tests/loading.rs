//! Feeds are added, changed and removed on threads that neither move frames nor answer wake-ups. If the control of an
//! engine blocks, only the thread that gave the command waits.

mod common;

use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use weir_capture::generator::{GenSpec, MemGen, Rate};
use weir_capture::{
    CaptureError, Change, Feed, FeedControl, FeedHandle, FeedSlot, FilterLocation, Info, Pumped,
    Setup, Source, WakerSlot,
};
use weir_probe::core::Event;
use weir_probe::{Probe, SourceSpec, Update};
use weir_ring::wake::{Sleeper, Waker, Woken};
use weir_ring::{Batch, Ledger, Poll, Reader, Start};

use common::{LIMIT, wait_for};

/// While it is shut, blocks every thread that changes feeds, and records that a thread waits.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    is_shut: bool,
    is_waited_at: bool,
    /// The thread that pumps.
    pumps: Option<ThreadId>,
    /// All threads that have come to the gate since it was last shut.
    came: Vec<ThreadId>,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.came.push(std::thread::current().id());
        while state.is_shut {
            state.is_waited_at = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
    }

    fn shut(&self) {
        let mut state = self.state.lock().unwrap();
        let pumps = state.pumps;
        *state = GateState { is_shut: true, pumps, ..GateState::default() };
    }

    fn open(&self) {
        self.state.lock().unwrap().is_shut = false;
        self.changed.notify_all();
    }

    /// Waits until a thread is blocked at the gate.
    fn wait(&self) {
        let state = self.state.lock().unwrap();
        let waits = |state: &mut GateState| !state.is_waited_at;
        let (state, waited) = self.changed.wait_timeout_while(state, LIMIT, waits).unwrap();
        assert!(!waited.timed_out() && state.is_waited_at, "nobody changes feeds");
    }
}

struct Gated {
    source: MemGen,
    gate: Arc<Gate>,
}

impl Source for Gated {
    fn info(&self) -> &Info {
        self.source.info()
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        Arc::new(GatedControl { control: self.source.control(), gate: Arc::clone(&self.gate) })
    }

    fn start(&mut self) -> Result<(), CaptureError> {
        self.source.start()
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        self.gate.state.lock().unwrap().pumps = Some(std::thread::current().id());
        self.source.pump(limit)
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.source.stop()
    }
}

struct GatedControl {
    control: Arc<dyn FeedControl>,
    gate: Arc<Gate>,
}

impl FeedControl for GatedControl {
    fn feeds(&self) -> Vec<FeedHandle> {
        self.control.feeds()
    }

    fn add(&self, feed: Feed) -> Result<FeedHandle, CaptureError> {
        self.gate.pass();
        self.control.add(feed)
    }

    fn remove(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        self.gate.pass();
        self.control.remove(feed)
    }

    fn replace_rings(&self, feed: FeedSlot) -> Result<(FeedHandle, Ledger), CaptureError> {
        self.gate.pass();
        self.control.replace_rings(feed)
    }

    fn change(&self, feed: FeedSlot, change: Change) -> Result<FilterLocation, CaptureError> {
        self.gate.pass();
        self.control.change(feed, change)
    }

    fn attach(&self, feed: FeedSlot, waker: Waker, line: usize) -> Result<WakerSlot, CaptureError> {
        self.gate.pass();
        self.control.attach(feed, waker, line)
    }

    fn detach(&self, feed: FeedSlot, waker: WakerSlot) {
        self.gate.pass();
        self.control.detach(feed, waker);
    }

    fn ledger(&self, feed: FeedSlot) -> Result<Ledger, CaptureError> {
        self.control.ledger(feed)
    }
}

fn gated(gate: &Arc<Gate>) -> SourceSpec {
    let gate = Arc::clone(gate);
    SourceSpec::new("gen:", move |feeds| {
        let setup = Setup {
            feeds,
            ring_bytes: 8 << 20,
            promiscuous: false,
            may_change: true,
            ..Setup::default()
        };
        let spec = GenSpec { rate: Rate::Pps(5_000.0), ..GenSpec::default() };
        let (source, gate) = (MemGen::open(spec, setup, false)?, Arc::clone(&gate));
        Ok(Box::new(Gated { source, gate }))
    })
}

#[test]
fn an_engine_that_takes_its_time_with_a_feed_delays_no_frame_of_the_others() {
    let (probe, events) = Probe::new().unwrap();
    let gate = Arc::new(Gate::default());
    let (source, own) = probe.open(gated(&gate), vec![Feed::default().into()]).unwrap();
    let consumer = probe.add_consumer(4).unwrap();
    let beside = probe.add_consumer(4).unwrap();
    probe.attach(consumer.id, own[0]).unwrap();
    probe.start(source).unwrap();
    let feed = consumer.wait_for_feed(LIMIT).expect("it has joined");
    let mut reader = [Reader::new(&feed.rings[0], Start::Oldest).unwrap()];
    let mut batch = Batch::new();

    let other = Feed { snaplen: 64, ..Feed::default() };
    let added = std::sync::OnceLock::new();
    let commands: [&(dyn Fn() + Sync); 4] = [
        &|| _ = added.set(probe.subscribe(source, other.clone().into()).unwrap()),
        &|| probe.attach(beside.id, *added.get().unwrap()).unwrap(),
        &|| probe.detach(beside.id, *added.get().unwrap()).unwrap(),
        &|| probe.unsubscribe(*added.get().unwrap()).unwrap(),
    ];
    for command in commands {
        gate.shut();
        std::thread::scope(|scope| {
            // Opens the gate even if an assertion fails.
            let _open = Opening(&gate);
            scope.spawn(command);
            gate.wait();
            // While the engine's control is blocked, frames arrive and wake the sleeper.
            let (begin, until) = (Instant::now(), reader[0].ordinal() + 1000);
            while reader[0].ordinal() < until {
                assert!(begin.elapsed() < LIMIT, "no frames");
                assert_eq!(consumer.sleeper.sleep(&reader, 1, LIMIT).unwrap(), Woken::Frames);
                assert!(!matches!(reader[0].poll(&mut batch).unwrap(), Poll::Lapped(_)));
            }
        });
        let state = gate.state.lock().unwrap();
        let pumps = state.pumps.expect("it pumps");
        assert!(!state.came.is_empty() && !state.came.contains(&pumps));
    }
    probe.close(source).unwrap();
    let ledger = wait_for(&events, |event| match event {
        Event::FeedClosed(_, of, ledger) if of == feed.feed => ledger,
        _ => None,
    });
    assert!(ledger.closes(), "{ledger:?}");
}

struct Opening<'a>(&'a Gate);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[test]
fn a_process_may_let_go_of_a_feed_before_the_engine_does() {
    let (probe, _events) = Probe::new().unwrap();
    let gate = Arc::new(Gate::default());
    let (_, own) = probe.open(gated(&gate), vec![Feed::default().into()]).unwrap();
    // Another consumer reads the feed, too, so the feed stays.
    let stays = probe.add_consumer(1).unwrap();
    probe.attach(stays.id, own[0]).unwrap();
    let remote = probe.add_remote_consumer(1).unwrap();
    let sleeper = Sleeper::new(1).unwrap();
    for number in 0..3 {
        let [page, socket] = sleeper.channel().unwrap();
        remote.give_channel(Waker::attach(page, socket, 1).unwrap()).unwrap();
        probe.attach(remote.id, own[0]).unwrap();
        assert_eq!(remote.wait_for_feed(LIMIT).expect("it has joined").channel, Some(number));
        gate.shut();
        std::thread::scope(|scope| {
            let _open = Opening(&gate);
            scope.spawn(|| probe.detach(remote.id, own[0]).unwrap());
            gate.wait();
            assert!(matches!(remote.wait_for_update(LIMIT), Some(Update::Left(..))));
            remote.let_go_of_channel(number);
            assert_eq!(sleeper.find_gone_writer(), None);
        });
        assert_eq!(sleeper.find_gone_writer(), Some(number));
    }
}
