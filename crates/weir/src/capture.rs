//! `weir capture`: sources in, one consumer out, and the ledger.

use std::io::{self, IsTerminal};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_capture::pace::Place;
use weir_capture::{Outcome, Session};
use weir_consumer::{
    Consumer, ConsumerError, Count, Delivered, Null, Numbering, Ordered, Sink, Step, Waiting,
};
use weir_frame::pcapng::{Interface, Statistics};
use weir_ring::Ledger;
use weir_ring::wake::RINGS_MAX;
use weir_store::FileWriter;

use crate::cli::CaptureArgs;
use crate::control::Control;
use crate::ending::conclude;
use crate::latency::Latency;
use crate::outlet::{Outlet, Stop};
use crate::plan::CapturePlan;
use crate::printer::{Printer, with_feeds};
use crate::ran::Ran;
use crate::sources::{Opened, Subscribed, open_all};
use crate::units::{BIT_RATE, HeldUnit, PACKET_RATE, grouped};
use crate::{signals, usage_hints};

/// Runs the command.
pub fn run(args: &CaptureArgs) -> Result<u8> {
    let stop = signals::stop_flag()?;
    let plan = CapturePlan::new(args)?;
    let ran = execute(&plan, &stop)?;
    conclude(&plan, ran, &stop)
}

/// Captures until `stop` is set or a limit is reached.
pub fn execute(plan: &CapturePlan, stop: &Arc<AtomicBool>) -> Result<Ran> {
    raise_descriptor_limit();
    let mut session = Session::new();
    let Opened { interfaces, feeds, feed_of, places } = open_all(&mut session, plan)?;
    let rings = session.rings();
    let numbering = Numbering::new(&rings, &feed_of);
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
    let run = Run { plan, stop, feeds, places, control, start_ns: now_ns() };
    if let Some(path) = &plan.outputs.write {
        let file = open_file(path, &interfaces, run.output_stop())?;
        return run.to_sink(session, Ordered::new(&rings, numbering, plan.merge_slack, file)?);
    }
    if plan.outputs.print {
        let out = Outlet::stdout(run.output_stop()).context("standard output")?;
        let printer = Printer::new(out, with_feeds(interfaces, &run.feeds));
        return run.to_sink(session, Ordered::new(&rings, numbering, plan.merge_slack, printer)?);
    }
    if let Some(how) = plan.outputs.latency {
        let mut latency = Latency::new(&rings, how)?;
        let mut ran = run.to_counter(session, &mut latency)?;
        ran.latency = Some(latency.report());
        return Ok(ran);
    }
    run.to_counter(session, &mut Null::new(&rings, numbering)?)
}

/// Each ring of each feed takes some, and the usual limit is for programs that use select(2).
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Refused: then what needs more says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn open_file(path: &Path, interfaces: &[Interface], stop: Stop) -> Result<FileWriter> {
    if path == Path::new("-") {
        let out = Outlet::stdout(stop).context("standard output")?;
        return Ok(FileWriter::pipe(out, "standard output", interfaces)?);
    }
    if path.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
        let name = path.display().to_string();
        let out =
            Outlet::named_pipe(path, stop, || eprintln!("weir: {name}: waiting for a reader"));
        return Ok(FileWriter::pipe(out.with_context(|| name.clone())?, &name, interfaces)?);
    }
    Ok(FileWriter::create(path, interfaces)?)
}

/// What a run needs throughout.
struct Run<'a> {
    plan: &'a CapturePlan,
    stop: &'a Arc<AtomicBool>,
    feeds: Vec<Subscribed>,
    places: Vec<(usize, Place)>,
    /// Until the end of the run.
    control: Option<Control>,
    start_ns: u64,
}

impl Run<'_> {
    /// When the output is no longer to wait for a reader that takes nothing.
    fn output_stop(&self) -> Stop {
        let at = self.plan.duration.and_then(|limit| Instant::now().checked_add(limit));
        Stop { flag: Arc::clone(self.stop), at }
    }

    /// Moves frames until somebody has had enough, then stops the sources and takes the rest.
    fn drive(&self, mut session: Session, consumer: &mut dyn Consumer) -> Result<Ran> {
        let rings = session.rings();
        let mut waiting = Waiting::new(session.start()?, &rings);
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
        let begin = Instant::now();
        let mut live = Live::new(begin);
        let failure = loop {
            let step = consumer.step(self.left(consumer));
            self.show_progress(consumer);
            match step {
                Ok(Step::Ended) => break None,
                Ok(Step::Busy) => {}
                Ok(_) if !consumer.rests() => {}
                Ok(step) => {
                    if let Err(error) = waiting.wait(consumer, step) {
                        break Some(error);
                    }
                }
                Err(error) => break Some(error),
            }
            let over = self.plan.duration.is_some_and(|limit| begin.elapsed() >= limit);
            if over || self.left(consumer) == 0 || signals::is_set(self.stop) || session.ended() {
                break None;
            }
            tell_failures(&session);
            live.tick(&session, consumer);
        };
        let mut last = Instant::now();
        // While sources stop, frames still come: somebody must read, or they are lapped at the very end.
        session.stop();
        let failure = failure.or_else(|| self.take_rest(consumer, &mut last).err());
        let outcomes = session.finish();
        // The rings outlive their sources: what a slow stop brought is still to be taken.
        let failure = failure.or_else(|| self.take_rest(consumer, &mut last).err());
        let duration = last.duration_since(begin);
        let (delivered, by_interface) = (consumer.delivered(), consumer.by_interface());
        Ok(Ran {
            outcomes,
            feeds: self.feeds_by_now(),
            delivered,
            by_interface,
            duration,
            store_drops: 0,
            ring_drops: 0,
            failure,
            latency: None,
        })
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

    fn left(&self, consumer: &dyn Consumer) -> u64 {
        let taken = consumer.delivered().frames;
        self.plan.frames.map_or(u64::MAX, |limit| limit.saturating_sub(taken))
    }

    /// Lets files that wait for this consumer go on.
    fn show_progress(&self, consumer: &dyn Consumer) {
        for (ring, place) in &self.places {
            place.reached(consumer.ordinal(*ring));
        }
    }

    /// Reads the closed rings to their ends, or to the limit. `last`: when the last frame was taken.
    fn take_rest(
        &self,
        consumer: &mut dyn Consumer,
        last: &mut Instant,
    ) -> Result<(), ConsumerError> {
        let patience = self.plan.merge_slack + Duration::from_secs(1);
        let begin = Instant::now();
        let mut moved = begin;
        while self.left(consumer) > 0 {
            let step = consumer.step(self.left(consumer));
            self.show_progress(consumer);
            match step? {
                Step::Ended => break,
                Step::Busy => {
                    moved = Instant::now();
                    *last = moved;
                }
                // A source that failed at its stop may leave a ring open.
                _ if moved.elapsed() > patience => break,
                Step::Idle | Step::Waiting => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        let flushed = consumer.flush();
        if moved > begin {
            *last = Instant::now();
        }
        flushed
    }

    fn to_sink<S: Sink>(&self, session: Session, mut consumer: Ordered<S>) -> Result<Ran> {
        let mut ran = self.drive(session, &mut consumer)?;
        if ran.failure.is_none() {
            let statistics = self.statistics(&ran.outcomes, ran.delivered.frames);
            ran.failure = consumer.sink.finish(&statistics).err();
        }
        let (kept, unread) = (consumer.sink.kept(), consumer.unread());
        ran.account(kept, unread, self.left(&consumer) == 0);
        Ok(ran)
    }

    fn to_counter(&self, session: Session, consumer: &mut dyn Consumer) -> Result<Ran> {
        let mut ran = self.drive(session, consumer)?;
        let Delivered { frames, wire_bytes, .. } = ran.delivered;
        let all = Count { frames, wire_bytes };
        ran.account(all, consumer.unread(), self.left(consumer) == 0);
        Ok(ran)
    }

    /// The statistics blocks at the end of a file, one per interface.
    fn statistics(&self, outcomes: &[Outcome], delivered: u64) -> Vec<Statistics> {
        let end_ns = now_ns();
        let ledgers: Vec<&Ledger> =
            outcomes.iter().flat_map(|outcome| outcome.ledgers.iter()).collect();
        let one = |(id, ledger): (usize, &&Ledger)| Statistics {
            interface_id: id as u32,
            ts_ns: end_ns,
            start_ns: Some(self.start_ns),
            end_ns: Some(end_ns),
            received: (!ledger.filtered_uncounted).then_some(ledger.offered),
            interface_drops: ledger.missed_before,
            filter_accepted: Some(ledger.offered - ledger.filtered),
            os_drops: Some(ledger.dropped()),
            delivered: (ledgers.len() == 1).then_some(delivered),
        };
        ledgers.iter().enumerate().map(one).collect()
    }
}

/// Says which sources have failed while others go on; why is said again at the end.
fn tell_failures(session: &Session) {
    for (info, error) in session.failures() {
        eprintln!("weir: {}: this source has ended, the others go on: {error}", info.source);
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

    fn tick(&mut self, session: &Session, consumer: &dyn Consumer) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_secs(1);
        let delivered = consumer.delivered();
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
        let rings = [ring.clone()];
        let mut consumer = Null::new(&rings, Numbering::of_one_feed(&rings)).unwrap();
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
        let outcome = Outcome { info, ledgers: vec![ledger], error: None };
        let mut ran = Ran {
            outcomes: vec![outcome],
            feeds: Vec::new(),
            delivered: consumer.delivered(),
            by_interface: consumer.by_interface(),
            duration: Duration::from_secs(1),
            store_drops: 0,
            ring_drops: 0,
            failure: Some(failure),
            latency: None,
        };
        ran.account(Count { frames: 7, wire_bytes: 420 }, consumer.unread(), false);
        assert_eq!((ran.ring_drops, ran.store_drops), (5, 0));
        assert_eq!((ran.report().unexplained(), ran.report().lost()), (0, 5));
        assert!(ran.report().json().contains(r#""drops":{"ring":5,"store":0}"#));
        assert!(ran.report().text().contains("drop ring"));
        assert!(ran.errors()[0].contains("corrupt"), "{:?}", ran.errors());
    }
}
