//! Makes views: requests the flows from the monitor once a second, and computes the changes since the last view.
//!
//! The monitor's thread only copies flow records, some thousand at a time, between two batches of frames. If the queue
//! is full, it continues later and does not wait. All other work is done by the thread of this module.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use weir_export::Origin;
use weir_flow::{Counters, FlowRecord};

use crate::latest::Latest;
use crate::limits::{PART_FLOWS, PART_PLACES, PARTS_MAX, PATIENCE, VIEW_EVERY};
use crate::protocols::Protocols;
use crate::shown::Shown;
use crate::talkers::Talkers;
use crate::view::{ExportView, FlowView, Rates, SourceView, TrafficCounts, View};

/// The state that the monitor reports at the end of each pass over its flows.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The table's counters.
    pub counters: Counters,
    /// The most flows that the table can hold.
    pub capacity: u64,
    /// Frames that were counted.
    pub frames: u64,
    /// Bytes of these frames on the wire. If `None`, the displayed bytes are those of IP packets.
    pub wire_bytes: Option<u64>,
    /// Flow records of flows that ended.
    pub records: u64,
    /// Counts of these flows, by protocol.
    pub ended: Protocols,
    /// Interfaces, indexed by [`FlowRecord::interface`].
    pub origins: Arc<Vec<Origin>>,
    /// The exports of flow records.
    pub exports: Vec<ExportView>,
}

/// The state of the sources, as the run reports it.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Every source.
    pub sources: Vec<SourceView>,
    /// Frames that were lapped because the monitor was too slow.
    pub lapped: u64,
}

/// Places of a flow table that are copied between two checks of [`PART_FLOWS`].
const PLACES_AT_A_TIME: usize = 64;
/// The most messages for the user that are kept.
const NEWS_MAX: usize = 5;

enum Part {
    Flows(Vec<FlowRecord>),
    Snapshot(Box<Snapshot>),
}

/// State that all threads share.
#[derive(Default)]
struct Shared {
    is_wanted: AtomicBool,
    is_over: AtomicBool,
    sources: Mutex<Sources>,
    news: Mutex<VecDeque<String>>,
}

/// The handle of the monitor's thread: sends flows and snapshots to the maker of views.
pub struct Reporter {
    shared: Arc<Shared>,
    parts: SyncSender<Part>,
    /// A part that could not be sent because the queue was full.
    held: Option<Part>,
    /// The next place of the flow table to copy, during a pass.
    at: Option<usize>,
    /// Counts of flows that had ended when the pass began. Flows that end during the pass are not included: the pass
    /// may already have counted them as flows of the table.
    ended: Protocols,
}

/// Reports the sources. Clones share the same state.
#[derive(Clone)]
pub struct SourceReporter(Arc<Shared>, Latest);

/// The thread that makes views. Dropping this value ends the thread.
pub struct Maker {
    shared: Arc<Shared>,
    latest: Latest,
    thread: Option<JoinHandle<()>>,
}

impl Maker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(latest: Latest) -> io::Result<(Maker, Reporter)> {
        let (parts, received) = sync_channel(PARTS_MAX);
        let shared = Arc::new(Shared::default());
        let (of_thread, views) = (Arc::clone(&shared), latest.clone());
        let thread = thread::Builder::new().name("weir-view".into()).spawn(move || {
            Making::new(of_thread, views).run(&received);
        })?;
        let reporter = Reporter {
            shared: Arc::clone(&shared),
            parts,
            held: None,
            at: None,
            ended: Protocols::default(),
        };
        Ok((Maker { shared, latest, thread: Some(thread) }, reporter))
    }

    /// Returns a handle for reporting the sources.
    #[must_use]
    pub fn sources(&self) -> SourceReporter {
        SourceReporter(Arc::clone(&self.shared), self.latest.clone())
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.latest.end();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

impl SourceReporter {
    /// Replaces the state of all sources.
    pub fn tell(&self, sources: Sources) {
        *self.0.sources() = sources;
    }

    /// Ends the making of views.
    pub fn end(&self) {
        self.0.is_over.store(true, Ordering::Release);
        self.1.end();
    }

    /// Adds a message for the user, for example that a source has vanished.
    pub fn say(&self, line: String) {
        let mut news = self.0.news();
        news.push_back(line);
        if news.len() > NEWS_MAX {
            news.pop_front();
        }
    }
}

impl Reporter {
    /// Copies at most `parts` parts of the flows, if a pass has begun or is requested. The monitor calls this between
    /// frames, and also when no frames come.
    ///
    /// `places` is the number of places of the flow table. `live` returns the flows at a range of places, `snapshot`
    /// returns the other data. Returns whether anything was sent.
    pub fn go_on<I: Iterator<Item = FlowRecord>>(
        &mut self,
        parts: usize,
        places: usize,
        live: impl Fn(Range<usize>) -> I,
        snapshot: impl Fn() -> Snapshot,
    ) -> bool {
        let comes_on = |_: &usize| self.go_on_by_a_part(places, &live, &snapshot);
        (0..parts).take_while(comes_on).count() > 0
    }

    /// Sends one part. Returns whether that was possible.
    fn go_on_by_a_part<I: Iterator<Item = FlowRecord>>(
        &mut self,
        places: usize,
        live: &impl Fn(Range<usize>) -> I,
        snapshot: &impl Fn() -> Snapshot,
    ) -> bool {
        if let Some(held) = self.held.take() {
            return self.send(held);
        }
        let from = match self.at {
            Some(at) => at,
            None if self.shared.is_wanted.swap(false, Ordering::AcqRel) => {
                self.ended = snapshot().ended;
                0
            }
            None => return false,
        };
        if from >= places {
            self.at = None;
            let ended = std::mem::take(&mut self.ended);
            return self.send(Part::Snapshot(Box::new(Snapshot { ended, ..snapshot() })));
        }
        let (mut flows, mut at, end) = (Vec::new(), from, places.min(from + PART_PLACES));
        while at < end && flows.len() < PART_FLOWS {
            let to = end.min(at + PLACES_AT_A_TIME);
            flows.extend(live(at..to));
            at = to;
        }
        self.at = Some(at);
        self.send(Part::Flows(flows))
    }

    fn send(&mut self, part: Part) -> bool {
        match self.parts.try_send(part) {
            Ok(()) => true,
            Err(TrySendError::Full(part)) => {
                self.held = Some(part);
                false
            }
            // The maker of views has ended.
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

impl Shared {
    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn news(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State that is kept from one view to the next.
struct Making {
    shared: Arc<Shared>,
    latest: Latest,
    begun: Instant,
    /// Time and data of the last view.
    last: (Instant, Snapshot),
    lost: u64,
    delivered: TrafficCounts,
    protocols: Protocols,
    /// Counts of both directions of each flow in the last view. The key is a hash of the flow and its start time.
    flows: HashMap<u64, [TrafficCounts; 2]>,
    hasher: RandomState,
    number: u64,
}

impl Making {
    fn new(shared: Arc<Shared>, latest: Latest) -> Making {
        let (begun, hasher) = (Instant::now(), RandomState::new());
        let (protocols, flows) = (Protocols::default(), HashMap::new());
        Making {
            shared,
            latest,
            begun,
            last: (begun, Snapshot::default()),
            lost: 0,
            delivered: TrafficCounts::default(),
            protocols,
            flows,
            hasher,
            number: 0,
        }
    }

    fn run(mut self, parts: &Receiver<Part>) {
        let mut due = self.begun + VIEW_EVERY;
        while !self.is_over() {
            let left = due.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                thread::park_timeout(left);
                continue;
            }
            due = (due + VIEW_EVERY).max(Instant::now());
            self.shared.is_wanted.store(true, Ordering::Release);
            let Some((round, told)) = self.receive(parts) else { return };
            self.publish(round, told);
        }
    }

    fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Acquire)
    }

    /// Receives a pass over all flows. Returns `None` if the run is over or the monitor has ended.
    fn receive(&mut self, parts: &Receiver<Part>) -> Option<(Round, Snapshot)> {
        let mut round = Round::default();
        let since = self.last.0;
        loop {
            match parts.recv_timeout(PATIENCE) {
                Ok(Part::Flows(flows)) => {
                    let seconds = since.elapsed().as_secs_f64();
                    flows.iter().for_each(|flow| round.take(flow, self, seconds));
                }
                Ok(Part::Snapshot(told)) => return Some((round, *told)),
                Err(RecvTimeoutError::Timeout) if self.is_over() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn publish(&mut self, round: Round, told: Snapshot) {
        let now = Instant::now();
        let (then, before) = std::mem::replace(&mut self.last, (now, told));
        let told = &self.last.1;
        let mut protocols = told.ended.clone();
        protocols.add(&round.protocols);
        // A flow that ended before the pass came to its place is counted only in the next pass. Until then the counts
        // must not decrease.
        protocols.raise_to(&self.protocols);
        let bytes = told.wire_bytes.unwrap_or_else(|| protocols.bytes());
        let delivered = TrafficCounts { packets: told.frames, bytes };
        let since = std::mem::replace(&mut self.delivered, delivered);
        let seconds = now.duration_since(then).as_secs_f64().max(1e-3);
        let Sources { sources, lapped } = self.shared.sources().clone();
        let lost = lapped + sources.iter().flat_map(|source| source.drops.values()).sum::<u64>();
        self.number += 1;
        let view = View {
            number: self.number,
            at_ns: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_nanos() as u64),
            uptime: now.duration_since(self.begun),
            sources,
            delivered,
            rates: Rates::of(delivered.since(since), seconds),
            lapped,
            lost_per_second: lost.saturating_sub(self.lost) as f64 / seconds,
            counters: told.counters,
            capacity: told.capacity,
            began_per_second: told.counters.began.saturating_sub(before.counters.began) as f64
                / seconds,
            records: told.records,
            exports: told.exports.clone(),
            protocols: protocols.views(&self.protocols, seconds),
            flows_left_out: round.shown.left_out(),
            flows: Arc::new(round.shown.into_sorted()),
            talkers: round.talkers.into_sorted(),
            origins: Arc::clone(&told.origins),
            news: self.shared.news().iter().cloned().collect(),
        };
        (self.lost, self.protocols, self.flows) = (lost, protocols, round.flows);
        self.latest.publish(view);
    }
}

/// Wakes the readers of views when the thread ends, also after a panic.
impl Drop for Making {
    fn drop(&mut self) {
        self.latest.end();
    }
}

/// Data that is collected during a pass over all flows.
#[derive(Default)]
struct Round {
    shown: Shown,
    talkers: Talkers,
    protocols: Protocols,
    flows: HashMap<u64, [TrafficCounts; 2]>,
}

impl Round {
    fn take(&mut self, flow: &FlowRecord, before: &Making, seconds: f64) {
        let now = [flow.forward, flow.reverse].map(TrafficCounts::from);
        self.protocols.count(flow.key.protocol, now[0] + now[1]);
        // The hash includes the start time: a flow that has begun again starts from 0, and parts of a flow in several
        // tables count as different flows.
        let hash = before.hasher.hash_one((&flow.key, flow.vlan, flow.interface, flow.first_ns));
        let then = before.flows.get(&hash).copied().unwrap_or_default();
        self.flows.insert(hash, now);
        let rates = [0, 1].map(|way| Rates::of(now[way].since(then[way]), seconds));
        self.shown.take(FlowView { record: *flow, rates: rates[0] + rates[1] });
        self.talkers.take(flow, rates);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::flow;
    use weir_flow::Totals;

    /// Acts as a monitor with these flows until the next view.
    fn next(
        reporter: &mut Reporter,
        latest: &Latest,
        number: u64,
        flows: &[FlowRecord],
        told: &Snapshot,
    ) -> Arc<View> {
        loop {
            let live = |places: Range<usize>| flows[places].iter().copied();
            reporter.go_on(1, flows.len(), live, || told.clone());
            match latest.wait(number, Duration::from_millis(1)) {
                Some(view) if view.number != number => return view,
                _ => {}
            }
        }
    }

    #[test]
    fn rates_are_what_came_since_the_view_before() {
        let latest = Latest::default();
        let (maker, mut reporter) = Maker::start(latest.clone()).unwrap();
        let drops = [("ring".to_owned(), 7)].into();
        let sources = vec![SourceView { drops, ..SourceView::default() }];
        maker.sources().tell(Sources { sources, lapped: 3 });
        let forward = Totals { packets: 10, bytes: 500, tcp_flags: 0 };
        let mut ended = Protocols::default();
        ended.take(&FlowRecord { forward, ..flow(9) });
        let told = Snapshot { capacity: 100, ended, records: 1, ..Snapshot::default() };
        let first = next(&mut reporter, &latest, 0, &[flow(1), flow(2), flow(3)], &told);
        assert_eq!((first.number, first.flows.len(), first.capacity), (1, 3, 100));
        assert!(first.lost_per_second > 0.0);
        assert!(first.flows.iter().all(|flow| flow.rates.bits > 0.0));
        assert_eq!((first.protocols[0].number, first.protocols[0].total.packets), (17, 13));
        // One flow continues, one has begun again, one has no new frames, one is new.
        let forward = Totals { packets: 101, bytes: 46 + 100 * 1000, tcp_flags: 0 };
        let goes_on = FlowRecord { forward, last_ns: 2_000_000_000, ..flow(1) };
        let anew = FlowRecord { first_ns: 2_000_000_000, ..flow(2) };
        let second = next(&mut reporter, &latest, 1, &[goes_on, anew, flow(3), flow(4)], &told);
        assert_eq!((second.number, second.lost_per_second), (2, 0.0));
        let rate = |flow: &FlowView| (flow.record.key.src_port, flow.rates.bits > 0.0);
        let rates: Vec<(u16, bool)> = second.flows.iter().map(rate).collect();
        assert_eq!((rates[0], rates.len()), ((1, true), 4));
        let moves = |port| rates.contains(&(port, true));
        assert!(moves(2) && moves(4) && !moves(3), "{rates:?}");
        let Rates { packets, bits } = second.flows[0].rates;
        assert!((packets * 1000.0 * 8.0 / bits - 1.0).abs() < 1e-9, "{packets} {bits}");
        drop(maker);
        assert!(latest.is_over());
    }

    #[test]
    fn a_monitor_whose_views_nobody_makes_goes_on() {
        let (maker, mut reporter) = Maker::start(Latest::default()).unwrap();
        drop(maker);
        let one = |_| std::iter::once(flow(1));
        let stays = |_| !reporter.go_on(1, 1, one, Snapshot::default);
        assert!((0..1000).all(stays));
    }

    #[test]
    fn a_maker_ends_though_its_monitor_says_nothing() {
        let (maker, reporter) = Maker::start(Latest::default()).unwrap();
        thread::sleep(VIEW_EVERY + PATIENCE);
        drop(maker);
        drop(reporter);
    }

    /// Events in a table between two parts of a round.
    #[derive(Clone, Debug)]
    enum Event {
        /// A frame of the flow at a place. It may be the flow's first frame.
        Frame { place: usize, protocol: u8, bytes: u64 },
        /// The flow at a place ends.
        End { place: usize },
    }

    /// A table, the reporter of its flows, and the views of it.
    struct Table {
        flows: BTreeMap<usize, FlowRecord>,
        ended: Protocols,
        /// Counts of all frames, by protocol.
        counted: BTreeMap<u8, TrafficCounts>,
        reporter: Reporter,
        parts: Receiver<Part>,
        making: Making,
    }

    /// Number of places of the table, for three parts in a pass.
    const PLACES: usize = 3 * PART_PLACES;

    impl Table {
        fn new() -> Table {
            let (sender, parts) = sync_channel(PARTS_MAX);
            let shared = Arc::new(Shared::default());
            let reporter = Reporter {
                shared: Arc::clone(&shared),
                parts: sender,
                held: None,
                at: None,
                ended: Protocols::default(),
            };
            Table {
                flows: BTreeMap::new(),
                ended: Protocols::default(),
                counted: BTreeMap::new(),
                reporter,
                parts,
                making: Making::new(shared, Latest::default()),
            }
        }

        fn happens(&mut self, event: &Event) {
            match *event {
                Event::Frame { place, protocol, bytes } => {
                    let new = || {
                        let mut flow = flow(place as u16);
                        flow.key.protocol = protocol;
                        FlowRecord { forward: Totals::default(), ..flow }
                    };
                    let flow = self.flows.entry(place).or_insert_with(new);
                    flow.forward.packets += 1;
                    flow.forward.bytes += bytes;
                    let counted = self.counted.entry(flow.key.protocol).or_default();
                    *counted = *counted + TrafficCounts { packets: 1, bytes };
                }
                Event::End { place } => {
                    if let Some(flow) = self.flows.remove(&place) {
                        self.ended.take(&flow);
                    }
                }
            }
        }

        /// The next view, while these events happen: a share of them before each part.
        fn view(&mut self, events: &[Event]) -> Arc<View> {
            self.making.shared.is_wanted.store(true, Ordering::Release);
            let share = events.len().div_ceil(PLACES / PART_PLACES + 1).max(1);
            let (mut shares, mut round) = (events.chunks(share), Round::default());
            loop {
                shares.next().into_iter().flatten().for_each(|event| self.happens(event));
                let Table { flows, ended, reporter, .. } = &mut *self;
                let live = |places: Range<usize>| flows.range(places).map(|(_, flow)| *flow);
                let snapshot = || Snapshot { ended: ended.clone(), ..Snapshot::default() };
                assert!(reporter.go_on(1, PLACES, live, snapshot), "there is room for a part");
                match self.parts.try_recv().expect("a part") {
                    Part::Flows(flows) => {
                        flows.iter().for_each(|flow| round.take(flow, &self.making, 1.0));
                    }
                    Part::Snapshot(told) => {
                        self.making.publish(round, *told);
                        return self.making.latest.get();
                    }
                }
            }
        }
    }

    fn any_event() -> impl Strategy<Value = Event> {
        // Few flows, in every part, so that they end and begin again.
        let place = (0..PLACES / PART_PLACES, 0..3_usize)
            .prop_map(|(part, place)| part * PART_PLACES + place);
        prop_oneof![
            3 => (place.clone(), 0..3_u8, 20..1500_u64)
                .prop_map(|(place, protocol, bytes)| Event::Frame { place, protocol, bytes }),
            1 => place.prop_map(|place| Event::End { place }),
        ]
    }

    proptest! {
        /// Prometheus takes a counter that decreases for one that was reset, and would count everything again.
        #[test]
        fn counts_of_protocols_never_go_back_while_flows_end(
            rounds in prop::collection::vec(prop::collection::vec(any_event(), 0..30), 1..12),
        ) {
            let mut table = Table::new();
            let totals = |view: &View| -> BTreeMap<u8, TrafficCounts> {
                view.protocols.iter().map(|protocol| (protocol.number, protocol.total)).collect()
            };
            let mut before = (totals(&View::default()), TrafficCounts::default());
            for events in &rounds {
                let view = table.view(events);
                let now = (totals(&view), view.delivered);
                for (number, then) in &before.0 {
                    let now = now.0.get(number).copied().unwrap_or_default();
                    prop_assert!(now.packets >= then.packets && now.bytes >= then.bytes);
                }
                // Without `wire_bytes`, the bytes of all protocols are shown.
                prop_assert!(now.1.bytes >= before.1.bytes);
                for (number, now) in &now.0 {
                    let counted = table.counted[number];
                    prop_assert!(now.packets <= counted.packets && now.bytes <= counted.bytes);
                }
                before = now;
            }
            // Without further events, the next view has all counts.
            let view = table.view(&[]);
            prop_assert_eq!(totals(&view), table.counted);
        }
    }
}
