//! `weir capture`: sources in, consumers out, and the ledger.

mod statistics;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_capture::pace::{Pace, Place};
use weir_capture::{Outcome, Session, SourceEvent};
use weir_consumer::thread::{Finished, Plan, Running, spawn};
use weir_consumer::{Delivered, JoinedFeed, Static};
use weir_ring::wake::{RINGS_MAX, Sleeper};
use weir_ring::{Ledger, Mapping, Ring};

use crate::cli::CaptureArgs;
use crate::consumers::{self, Input, Named, RunConsumer};
use crate::control::Control;
use crate::ending::conclude;
use crate::interruptible_writer::Stop;
use crate::plan::CapturePlan;
use crate::run_result::{ConsumerResult, RunResult};
use crate::sources::{Opened, Subscribed, open_all};
use crate::units::{BIT_RATE, HeldUnit, PACKET_RATE, grouped};
use crate::{privileges, signals, usage_hints};

/// Runs the command.
pub fn run(args: &CaptureArgs) -> Result<u8> {
    let stop = signals::stop_flag()?;
    let plan = CapturePlan::new(args)?;
    let result = execute(&plan, &stop, Rights::GiveUp)?;
    conclude(&plan, result, &stop)
}

/// What becomes of this process's capabilities once everything is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// They are given up, for ever.
    GiveUp,
    /// They stay: the process has something else to do with them.
    Keep,
}

/// Captures until `stop` is set or a limit is reached. Whoever sets `stop` unparks this thread.
pub fn execute(plan: &CapturePlan, stop: &Arc<AtomicBool>, rights: Rights) -> Result<RunResult> {
    raise_descriptor_limit();
    let mut session = Session::new();
    let Opened { interfaces, feeds, feed_of, paces } = open_all(&mut session, plan)?;
    let rings = session.rings();
    if rings.len() > RINGS_MAX {
        bail!(
            "the feeds of all sources have {} rings together, one for each CPU, and a consumer can sleep on {RINGS_MAX}; \
             take fewer --feed or fewer sources",
            rings.len()
        );
    }
    let control = match &plan.control {
        Some(path) => {
            let interface = |feed: &Subscribed| interfaces[feed.interface_id as usize].clone();
            let own = feeds.iter().map(|feed| (feed.clone(), interface(feed))).collect();
            Some(Control::listen(path, session.remote(), own)?)
        }
        None => None,
    };
    let at = plan.duration.and_then(|limit| Instant::now().checked_add(limit));
    let stop_at = Stop { flag: Arc::clone(stop), at };
    let mut consumers = consumers::all(&Input { plan, stop: stop_at })?;
    // Before anything begins: an output may not be able to take them all.
    for feed in joined_feeds(rings, &feed_of, &feeds) {
        consumers.iter_mut().try_for_each(|named| named.consumer.join(feed.clone()))?;
    }
    let paces = paces.into_iter().map(|(ring, pace)| (feed_of[ring] as u64, pace)).collect();
    let run = Run { plan, stop, rights, feeds, paces, control, start_ns: now_ns() };
    run.drive(session, consumers)
}

/// The feeds that consumers read. Feed number `feed_of[i]` has ring `i`; lines of text name those who asked for it.
fn joined_feeds(
    rings: Vec<Ring<Mapping>>,
    feed_of: &[usize],
    asked: &[Subscribed],
) -> Vec<JoinedFeed> {
    let mut own: Vec<Vec<_>> = Vec::new();
    for (ring, feed) in rings.into_iter().zip(feed_of) {
        own.resize_with(own.len().max(feed + 1), Vec::new);
        own[*feed].push(ring);
    }
    let mut joined = JoinedFeed::in_order(own);
    for (number, feed) in joined.iter_mut().enumerate() {
        let readers = asked.iter().filter(|asked| asked.interface_id as usize == number);
        let names: Vec<&str> = readers.map(|asked| asked.name.as_str()).collect();
        if names.iter().any(|name| !name.is_empty()) {
            feed.label = names.join(",");
        }
    }
    joined
}

/// Each ring of each feed takes some, and the usual limit is for programs that use select(2).
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Refused: then what needs more says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// What a run needs throughout.
struct Run<'a> {
    plan: &'a CapturePlan,
    stop: &'a Arc<AtomicBool>,
    rights: Rights,
    feeds: Vec<Subscribed>,
    /// Feeds of files, by key: they wait for consumers, and have one ring each.
    paces: Vec<(u64, Pace)>,
    /// Until the end of the run.
    control: Option<Control>,
    start_ns: u64,
}

impl Run<'_> {
    /// Moves frames until somebody has had enough, then stops the sources and takes the rest.
    fn drive(&self, mut session: Session, consumers: Vec<Named>) -> Result<RunResult> {
        let places: Vec<_> = consumers.iter().map(|_| self.join()).collect();
        let sleepers = session.start_with(consumers.len())?;
        if self.rights == Rights::GiveUp
            && let Some(keep) = privileges::needed(self.plan)
        {
            privileges::give_up(keep).context(
                "giving up capabilities, which a capture that runs has no need of; is /proc mounted?",
            )?;
        }
        self.introduce(&session);
        let begin = Instant::now();
        let mut running = Vec::new();
        for ((consumer, sleeper), places) in consumers.into_iter().zip(sleepers).zip(places) {
            // `--frames` is about the main one.
            let frames_max = self.plan.frames.filter(|_| running.is_empty());
            let name = consumer.name;
            running.push((name, self.start(consumer, sleeper, places, frames_max)?));
        }
        self.wait(&session, &running, begin);
        // While sources stop, frames still come: somebody must read, or they are lapped at the very end.
        let stopped = Instant::now();
        running.iter().for_each(|(_, consumer)| consumer.drain());
        session.stop();
        let outcomes = session.finish();
        // The rings outlive their sources: what a slow stop brought is still to be taken.
        let finished: Vec<_> =
            running.into_iter().map(|(name, consumer)| (name, consumer.finish())).collect();
        let last = finished.first().and_then(|(_, main)| main.last);
        let duration = last.unwrap_or(stopped).max(stopped).duration_since(begin);
        let result = |(name, finished)| self.conclude(name, finished, &outcomes);
        let consumers = finished.into_iter().map(result).collect();
        Ok(RunResult { feeds: self.feeds_by_now(), outcomes, consumers, duration })
    }

    /// A consumer's places in the rings of files.
    fn join(&self) -> Vec<(u64, Place)> {
        self.paces.iter().map(|(feed, pace)| (*feed, pace.join(0))).collect()
    }

    /// Says which engines were taken, and why.
    fn introduce(&self, session: &Session) {
        for info in session.infos() {
            let hook = info.hook.map_or_else(String::new, |hook| format!(" at {hook}"));
            eprintln!("weir: {}: {}{hook}: {}", info.source, info.engine, info.why);
            for note in &info.notes {
                eprintln!("weir: {}: {note}", info.source);
            }
        }
        if let Some(note) = self.plan.outputs.write.as_deref().and_then(usage_hints::format_note) {
            eprintln!("weir: {note}");
        }
    }

    fn start(
        &self,
        consumer: Named,
        sleeper: Sleeper,
        places: Vec<(u64, Place)>,
        frames_max: Option<u64>,
    ) -> Result<Running<dyn RunConsumer>> {
        let main = thread::current();
        let plan = Plan {
            waker: sleeper.waker()?,
            // All feeds have joined.
            source: Box::new(Static::new(sleeper, Vec::new())),
            frames_max,
            slack: self.plan.merge_slack,
            // Lets files that wait for this consumer go on.
            progress: Box::new(move |consumer: &(dyn RunConsumer + 'static)| {
                for (feed, place) in &places {
                    // One that was read to its end waits for nobody.
                    if let Some(ordinal) = consumer.rings().ordinal(*feed, 0) {
                        place.reached(ordinal);
                    }
                }
            }),
            ended: Box::new(move || main.unpark()),
        };
        spawn(consumer.consumer, plan).context("starting a thread")
    }

    /// Until the run is to end: it was asked to, its time is over, its frames are, or nobody takes any more.
    fn wait(
        &self,
        session: &Session,
        running: &[(&str, Running<dyn RunConsumer>)],
        begin: Instant,
    ) {
        let mut live = Live::new(begin);
        let mut told = vec![false; running.len()];
        let end = self.plan.duration.and_then(|limit| begin.checked_add(limit));
        let main = &running[0].1;
        loop {
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            let is_full = self.plan.frames.is_some() && main.has_ended();
            let nobody = running.iter().all(|(_, consumer)| consumer.has_ended());
            if is_over || is_full || nobody || signals::is_set(self.stop) || session.ended() {
                return;
            }
            for ((name, consumer), told) in running.iter().zip(&mut told) {
                if consumer.has_ended() && !std::mem::replace(told, true) {
                    eprintln!("weir: {name}: this consumer has ended, the others go on");
                }
            }
            tell_failures(session);
            tell_interfaces(session);
            live.tick(session, main.delivered());
            let next = end.map_or(live.next, |end| end.min(live.next));
            // Unparked by signals and by consumers that end.
            thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Lets out the rest of an output, and draws the consumer's account.
    fn conclude(
        &self,
        name: &'static str,
        finished: Finished<dyn RunConsumer>,
        outcomes: &[Outcome],
    ) -> ConsumerResult {
        let Finished { mut consumer, mut failure, limited, .. } = finished;
        let delivered = consumer.delivered();
        if failure.is_none() {
            let times = (self.start_ns, now_ns());
            let all = statistics::of(outcomes, consumer.rings(), delivered.frames, times);
            failure = consumer.finish(&all).err();
        }
        let by_interface = consumer.by_interface();
        let outputs = 0..outcomes.iter().map(|outcome| outcome.ledgers.len()).sum();
        let interfaces = outputs.map(|output| consumer.rings().interfaces(output)).collect();
        let latency = consumer.latency();
        let mut result = ConsumerResult {
            name,
            delivered,
            by_interface,
            interfaces,
            failure,
            latency,
            ..Default::default()
        };
        result.account(consumer.kept(), consumer.rings().unread(), limited);
        result
    }

    /// The feeds with the filters that are in force.
    fn feeds_by_now(&self) -> Vec<Subscribed> {
        let mut feeds = self.feeds.clone();
        let in_force = self.control.iter().flat_map(Control::in_force);
        for (feed, now) in feeds.iter_mut().zip(in_force) {
            feed.takes.filter = now.filter;
            feed.changes = now.changes;
        }
        feeds
    }
}

/// Says which sources have failed while others go on; why is said again at the end.
fn tell_failures(session: &Session) {
    for (info, error) in session.failures() {
        eprintln!("weir: {}: this source has ended, the others go on: {error}", info.source);
    }
}

/// Says which interfaces of a pattern came and went.
fn tell_interfaces(session: &Session) {
    for (info, event) in session.events() {
        let source = &info.source;
        match event {
            SourceEvent::Joined { iface } => eprintln!("weir: {source}: {iface} joined"),
            SourceEvent::Left { iface } => eprintln!("weir: {source}: {iface} left"),
            SourceEvent::Down { iface } => eprintln!("weir: {source}: {iface} went down"),
            SourceEvent::Up { iface } => eprintln!("weir: {source}: {iface} came up"),
            SourceEvent::LeftOut { iface, why } => {
                eprintln!("weir: {source}: {iface} is left out: {why}");
            }
        }
    }
}

/// One line a second on standard error.
struct Live {
    next: Instant,
    last: (Instant, Delivered),
    packets: HeldUnit,
    bits: HeldUnit,
    tty: bool,
}

impl Live {
    fn new(begin: Instant) -> Live {
        let next = begin + Duration::from_secs(1);
        Live {
            next,
            last: (begin, Delivered::default()),
            packets: HeldUnit::new(&PACKET_RATE),
            bits: HeldUnit::new(&BIT_RATE),
            tty: io::stderr().is_terminal(),
        }
    }

    fn tick(&mut self, session: &Session, delivered: Delivered) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_secs(1);
        let (then, before) = std::mem::replace(&mut self.last, (now, delivered));
        let seconds = now.duration_since(then).as_secs_f64();
        let mut total = Ledger::default();
        session.ledgers().iter().for_each(|ledger| total.add(ledger));
        let frames = (delivered.frames - before.frames) as f64;
        let bits = (delivered.wire_bytes - before.wire_bytes) as f64 * 8.0;
        let end = if self.tty { "\x1b[K\n" } else { "\n" };
        eprint!(
            "weir: {} {} | captured {} dropped {} lapped {}{end}",
            self.packets.show(frames / seconds),
            self.bits.show(bits / seconds),
            grouped(total.captured),
            grouped(total.dropped()),
            grouped(delivered.lapped),
        );
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use weir_consumer::{Consumer, Count, Null, Step};
    use weir_frame::pcapng::Interface;
    use weir_frame::record::Meta;
    use weir_ring::geometry::BLOCK_BYTES;
    use weir_ring::{Clock, RingSpec, Words, Writer, WriterKind, memory};

    #[test]
    fn what_a_corrupt_ring_keeps_to_itself_has_a_name_and_is_an_error() {
        let spec = RingSpec {
            data_blocks: 4,
            interfaces: vec![Interface::default()],
            cpu: None,
            clock: Clock::Foreign,
            writer: WriterKind::User,
        };
        let ring = memory::create_memfd("capture-test", &spec).unwrap();
        let mut writer = Writer::new(ring.clone());
        let mut push = |frames| {
            for _ in 0..frames {
                writer.push(&Meta { wire_len: 60, ..Meta::default() }, &[0; 60]);
            }
            writer.publish();
        };
        let mut consumer = Null::new();
        for feed in JoinedFeed::in_order(vec![vec![ring.clone()]]) {
            consumer.join(feed).unwrap();
        }
        push(7);
        assert_eq!(consumer.step(u64::MAX).unwrap(), Step::Busy);
        push(5);
        // The first data block, past what was read of it.
        for word in &ring.memory().words()[(BLOCK_BYTES as usize + 7 * 92) / 8..][..64] {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        let failure = consumer.step(u64::MAX).unwrap_err();

        let ledger = Ledger { offered: 12, captured: 12, ..Ledger::default() };
        let info = weir_capture::Info::default();
        let outcome = Outcome { info, ledgers: vec![ledger], ..Outcome::default() };
        let mut consumer_result = ConsumerResult {
            name: "count",
            delivered: consumer.delivered(),
            by_interface: consumer.by_interface(),
            interfaces: vec![consumer.rings().interfaces(0)],
            failure: Some(failure),
            ..Default::default()
        };
        consumer_result.account(
            Count { frames: 7, wire_bytes: 420 },
            consumer.rings().unread(),
            false,
        );
        assert_eq!((consumer_result.ring_drops, consumer_result.store_drops), (5, 0));
        let result = RunResult {
            outcomes: vec![outcome],
            feeds: Vec::new(),
            consumers: vec![consumer_result],
            duration: Duration::from_secs(1),
        };
        assert_eq!((result.report().unexplained(), result.report().lost()), (0, 5));
        assert!(result.report().json().contains(r#""drops":{"ring":5,"store":0}"#));
        assert!(result.report().text().contains("drop ring"));
        assert!(result.errors()[0].contains("corrupt"), "{:?}", result.errors());
    }
}
