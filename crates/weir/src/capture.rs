//! `weir capture`: makes a plan, opens its sources in a probe, runs consumers that read the feeds, and reports.

mod live;
mod metrics;
mod reading;
mod results;
mod statistics;
mod watched;

use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weir_consumer::thread::{Plan, Running, take_changes};
use weir_probe::{ConsumerId, Probe};
use weir_ring::idle::SLEEP_MAX;
use weir_ring::wake::RINGS_MAX;

use crate::cli::CaptureArgs;
use crate::consumers::{self, Input, Named, RunConsumer};
use crate::control::Control;
use crate::ending::conclude;
use crate::flows::watch::{Watch, say};
use crate::interruptible_writer::Stop;
use crate::journal::Journal;
use crate::metrics::{Address, Metrics};
use crate::plan::CapturePlan;
use crate::run_result::RunResult;
use crate::so_far::{ReportsSoFar, SoFar};
use crate::sources::{Subscribed, Subscriptions};
use crate::{pipes, privileges, signals, tagged, usage_hints};
use live::{Live, introduce};
use reading::{Leaving, Progress, Reading};

/// Interval at which a connection to a missing daemon is retried. When a daemon starts, the frames of at most this time
/// are missed.
const LOOK_FOR_DAEMONS_EVERY: Duration = Duration::from_millis(100);
/// The longest sleep of a consumer whose counts are displayed, and so the greatest age of these counts.
const WATCHED_SLEEP_MAX: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn run(args: &CaptureArgs) -> Result<u8> {
    let stop = signals::stop_flag()?;
    // SIGUSR1 ends the process until it is handled, so it is handled before the sources are opened. Reports are printed
    // later.
    signals::report_flag()?;
    signals::ignore_usr2()?;
    pipes::wait_for(&args.input, &stop)?;
    let plan = CapturePlan::new(args)?;
    args.print_note().into_iter().for_each(|note| eprintln!("weir: {note}"));
    let result = execute(&plan, &stop, Rights::GiveUp)?;
    conclude(&plan, result, &stop)
}

/// Treatment of this process's capabilities once everything is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// They are given up permanently.
    GiveUp,
    /// They are kept, because the process needs them for something else.
    Keep,
}

/// Captures until `stop` is set or a limit is reached. A thread that sets `stop` must also unpark this thread.
pub fn execute(plan: &CapturePlan, stop: &Arc<AtomicBool>, rights: Rights) -> Result<RunResult> {
    execute_telling(plan, stop, rights, &|| ())
}

/// As [`execute`]; calls `begun` once all sources capture.
pub fn execute_telling(
    plan: &CapturePlan,
    stop: &Arc<AtomicBool>,
    rights: Rights,
    begun: &dyn Fn(),
) -> Result<RunResult> {
    raise_descriptor_limit();
    let (journal, main) = (Arc::new(Journal::default()), thread::current());
    let probe = Arc::new(Probe::with_listener({
        let journal = Arc::clone(&journal);
        move |event| {
            journal.note(event);
            main.unpark();
        }
    })?);
    let result = Run::open(plan, stop, &probe, journal).and_then(|run| run.drive(rights, begun));
    // Detaches all programs in any case: a thread that serves the control socket may still hold the probe.
    probe.stop();
    result
}

/// Raises the soft limit of file descriptors to the hard limit. Each ring of each feed takes some descriptors, and the
/// usual soft limit is meant for programs that use select(2).
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, later calls that need more descriptors report the error.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The state of a run.
struct Run<'a> {
    plan: &'a CapturePlan,
    stop: &'a Arc<AtomicBool>,
    probe: &'a Arc<Probe>,
    journal: Arc<Journal>,
    subscriptions: Arc<Subscriptions>,
    /// Counts of the running capture, for other threads.
    so_far: Arc<SoFar>,
    /// Set when no feed will join any more.
    is_complete: Arc<AtomicBool>,
    /// The control socket, open until the end of the run.
    control: Option<Control>,
    /// The address at which metrics will be served.
    metrics: Option<Address>,
    start_ns: u64,
    /// Set by SIGUSR1, which requests a report.
    report_asked: Arc<AtomicBool>,
}

/// A running consumer.
struct Working {
    name: &'static str,
    id: ConsumerId,
    running: Running<dyn RunConsumer>,
}

impl<'a> Run<'a> {
    /// Opens the sources, without starting them.
    fn open(
        plan: &'a CapturePlan,
        stop: &'a Arc<AtomicBool>,
        probe: &'a Arc<Probe>,
        journal: Arc<Journal>,
    ) -> Result<Run<'a>> {
        let subscriptions = Arc::new(Subscriptions::open(probe, plan)?);
        let so_far =
            SoFar::new(Arc::clone(probe), Arc::clone(&journal), Arc::clone(&subscriptions));
        let so_far = Arc::new(so_far);
        let control = Control::of(plan, probe, &journal, &subscriptions, &so_far)?;
        let metrics = plan.metrics.map(Address::bind).transpose()?;
        let is_complete = Arc::new(AtomicBool::new(false));
        let start_ns = statistics::now_ns();
        let report_asked = signals::report_flag()?;
        Ok(Run {
            plan,
            stop,
            probe,
            journal,
            subscriptions,
            so_far,
            is_complete,
            control,
            metrics,
            start_ns,
            report_asked,
        })
    }

    /// Captures until the run is to end, then stops the sources and has the consumers read the remaining frames.
    fn drive(mut self, rights: Rights, begun: &dyn Fn()) -> Result<RunResult> {
        // Before the run begins, an output may wait for its reader, at most as long as the run may last.
        let at = self.plan.duration.and_then(|limit| Instant::now().checked_add(limit));
        let stop = Stop::new(Arc::clone(self.stop), at);
        let mut ready = Vec::new();
        let names = &self.subscriptions.names;
        for mut named in consumers::all(&Input { plan: self.plan, stop: stop.clone(), names })? {
            let mut reading = self.attach(named.name)?;
            // Before any thread starts, because an output may not support all feeds.
            take_changes(&mut reading, named.consumer.as_mut())?;
            ready.push((named, reading));
        }
        // Consumers start before frames come, which can fill a ring in milliseconds.
        let mut working: Vec<Working> = Vec::new();
        for (named, reading) in ready {
            // `--frames` applies to the main consumer, and to printed lines beside a file.
            let is_limited = working.is_empty() || named.name == "print";
            let frames_max = self.plan.frames.filter(|_| is_limited);
            working.push(self.start(named, reading, frames_max)?);
        }
        // Network namespaces can only be entered before capabilities are dropped.
        let on_tags = if self.plan.talks { self.notes_on_tags() } else { Vec::new() };
        // The first frames arrive before all sources are started and capabilities are dropped.
        let started = Instant::now();
        let _metrics = match self.start_sources(rights) {
            Ok(metrics) => metrics,
            Err(error) => {
                self.probe.stop();
                self.is_complete.store(true, Ordering::Release);
                working.into_iter().for_each(|consumer| drop(consumer.running.finish()));
                return Err(error);
            }
        };
        let begin = Instant::now();
        self.so_far.begins(started);
        begun();
        let end = self.plan.duration.and_then(|limit| begin.checked_add(limit));
        stop.end_at(end);
        // After the sources are started, because a terminal may be slow.
        if self.plan.talks {
            self.introduce(&on_tags);
        }
        self.wait(&working, begin, end);
        self.plan.watch.iter().for_each(Watch::end);
        // Frames still come while sources stop, so consumers must go on reading.
        let stopped = Instant::now();
        working.iter().for_each(|consumer| consumer.running.drain());
        // If the count fails, the last known ledgers are used.
        let _ = self.so_far.count();
        self.subscriptions.look(self.probe);
        // A panic of a thread is resumed at the very end, so that outputs keep the frames that they have taken.
        let mut panics: Vec<_> = panic_of(|| self.probe.stop()).err().into_iter().collect();
        self.is_complete.store(true, Ordering::Release);
        // The rings outlive their sources: frames that arrived during a slow stop must still be read.
        let mut finished = Vec::new();
        for Working { name, id, running } in working {
            match panic_of(|| running.finish()) {
                Ok(done) => finished.push((name, id, done)),
                Err(panic) => panics.push(panic),
            }
        }
        let last = finished.first().and_then(|(_, _, main)| main.last);
        let duration = last.unwrap_or(stopped).max(stopped).duration_since(started);
        let feeds = self.so_far.feeds(self.in_force());
        let result = |(name, id, finished)| self.conclude(name, id, finished, &feeds);
        let consumers = finished.into_iter().map(result).collect();
        if let Some(panic) = panics.into_iter().next() {
            resume_unwind(panic);
        }
        let sources = self.so_far.sources(&feeds, Journal::take_fate);
        Ok(RunResult { sources, feeds, consumers, duration, rates: None })
    }

    /// Starts the sources, and drops the capabilities that a running capture does not need.
    fn start_sources(&mut self, rights: Rights) -> Result<Option<Metrics>> {
        for source in &self.subscriptions.sources {
            self.probe.start(source.id)?;
        }
        if rights == Rights::GiveUp {
            privileges::give_up(privileges::needed(self.plan)).context(
                "giving up rights that a capture has no need of once it runs; is /proc mounted?",
            )?;
        }
        privileges::settle();
        // After capabilities are dropped: the new thread answers network connections, and inherits the capabilities of
        // this thread.
        let so_far = Arc::clone(&self.so_far);
        let highest = metrics::Highest::default();
        let text = move || metrics::text(&so_far, &highest);
        self.metrics.take().map(|at| at.serve(text)).transpose()
    }

    /// Adds a consumer to the probe, and attaches it to all feeds.
    fn attach(&self, name: &'static str) -> Result<Reading> {
        let rings: usize = self
            .subscriptions
            .outputs()
            .map(|feed| self.probe.rings_of(feed.subscription).len())
            .sum();
        if rings > RINGS_MAX {
            bail!(
                "the feeds of all sources have {rings} rings together, one for each CPU, and a consumer can sleep on \
                 {RINGS_MAX}; take fewer --feed or fewer sources"
            );
        }
        // With --follow, a source may be reopened with more rings.
        let lines = if self.plan.follow { RINGS_MAX } else { rings };
        let consumer = self.probe.add_consumer(lines)?;
        self.journal.add_consumer(consumer.id, name);
        for feed in &self.subscriptions.feeds {
            self.probe.attach(consumer.id, feed.subscription)?;
        }
        Ok(Reading {
            consumer,
            journal: Arc::clone(&self.journal),
            subscriptions: Arc::clone(&self.subscriptions),
            is_complete: Arc::clone(&self.is_complete),
            progress: Progress::default(),
        })
    }

    /// Returns notes on filters that frames with VLAN tags do not pass: with --verbose always, otherwise for sources
    /// where such frames are expected.
    fn notes_on_tags(&self) -> Vec<String> {
        let is_verbose = self.plan.outputs.print.is_some_and(|print| print.frame.verbose);
        let note = |feed: &Subscribed| {
            let source = self.plan.sources.get(feed.source)?;
            let filter = feed.takes.filter.as_deref().filter(|_| source.name.is_of_interfaces())?;
            let note = tagged::note(filter)?;
            (is_verbose || tagged::may_come(&source.target)).then_some(note)
        };
        self.subscriptions.outputs().filter_map(note).collect()
    }

    /// Prints which engines were chosen and why, followed by `notes`.
    fn introduce(&self, notes: &[String]) {
        for source in &self.subscriptions.sources {
            self.probe.info_of(source.id).iter().for_each(introduce);
        }
        notes.iter().for_each(|note| eprintln!("weir: {note}"));
        watched::print_notices(self);
        if let Some(path) = &self.plan.outputs.write {
            let note = usage_hints::format_note(path);
            let note = note.or_else(|| usage_hints::compression_note(path));
            note.iter().for_each(|note| eprintln!("weir: {note}"));
        }
    }

    fn start(&self, named: Named, reading: Reading, frames_max: Option<u64>) -> Result<Working> {
        let (main, id) = (thread::current(), reading.consumer.id);
        let leaving = Leaving(reading.progress.clone());
        let (journal, name, mut let_go) = (Arc::clone(&self.journal), named.name, 0);
        let (reports, mut due) = (ReportsSoFar::default(), None);
        let (reports_so_far, reports_at_end) = (reports.clone(), reports.clone());
        let is_looked_at = self.plan.watch.is_some() || reports.keep(named.consumer.as_ref());
        let plan = Plan {
            waker: reading.consumer.sleeper.waker()?,
            source: Box::new(reading),
            frames_max,
            slack: self.plan.merge_slack,
            progress: Box::new(move |consumer: &(dyn RunConsumer + 'static)| {
                leaving.0.tell(consumer);
                reports_so_far.tell(&mut due, consumer);
                let before = std::mem::replace(&mut let_go, consumer.rings().let_go());
                if let_go > before {
                    journal.note_let_go(name, let_go - before);
                }
            }),
            sleep_max: if is_looked_at { WATCHED_SLEEP_MAX } else { SLEEP_MAX },
            last: Box::new(move |consumer| {
                reports_at_end.keep(consumer);
            }),
            ended: Box::new(move |_| main.unpark()),
        };
        let running = named.spawn(plan)?;
        self.so_far.add_consumer(name, id, running.observer(), reports);
        Ok(Working { name, id, running })
    }

    /// Waits until the run is to end: on request, after its duration or number of frames, or when all consumers or all
    /// sources have ended.
    fn wait(&self, working: &[Working], begin: Instant, end: Option<Instant>) {
        let prints = self.plan.outputs.print.is_some() && std::io::stdout().is_terminal();
        let mut live = Live::new(begin, self.plan.talks, prints);
        let mut told = vec![false; working.len()];
        let main = &working[0].running;
        let every = self.plan.json_every;
        let mut report_at = every.map(|every| begin + every);
        // The viewers of `weir flows` need the sources before their first view.
        watched::tell(self, 0);
        loop {
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            let is_full = self.plan.is_ended_by_main() && main.has_ended();
            let nobody = working.iter().all(|consumer| consumer.running.has_ended());
            let is_done = self.journal.all_closed();
            if is_over || is_full || nobody || signals::is_set(self.stop) || is_done {
                live.end();
                return;
            }
            for (consumer, told) in working.iter().zip(&mut told) {
                if consumer.running.has_ended() && !std::mem::replace(told, true) {
                    let text = live::ended(consumer);
                    text.iter().for_each(|text| say(self.plan.watch.as_ref(), text));
                }
            }
            watched::print_notices(self);
            if self.report_asked.swap(false, Ordering::AcqRel) {
                watched::say_so_far(self);
            }
            if let (Some(every), Some(at)) = (every, &mut report_at)
                && Instant::now() >= *at
            {
                *at = Instant::now() + every;
                watched::print_so_far(self);
            }
            live.tick(main.delivered(), || {
                let _ = self.so_far.count();
                self.so_far.read();
                watched::tell(self, main.delivered().lapped);
                self.so_far.ledger()
            });
            let others = [end, report_at].into_iter().flatten();
            let mut next = others.fold(live.next, Instant::min);
            if self.subscriptions.look_for_daemons(self.probe) {
                next = next.min(Instant::now() + LOOK_FOR_DAEMONS_EVERY);
            }
            // Signals, consumers that end, and events of the probe unpark this thread.
            thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }
}

/// Calls `run`, and returns its result or its panic. After a panic, callers use nothing that `run` may have left
/// inconsistent.
fn panic_of<T>(run: impl FnOnce() -> T) -> thread::Result<T> {
    catch_unwind(AssertUnwindSafe(run))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use crate::run_result::{ConsumerResult, SourceResult};
    use std::time::Duration;
    use weir_capture::Info;
    use weir_capture::PlainEngine;
    use weir_capture::{Feed, Pumped, Setup};
    use weir_consumer::{Consumer, Count, JoinedFeed, Null, Step};
    use weir_frame::pcapng::Interface;
    use weir_frame::record::Meta;
    use weir_probe::SourceSpec;
    use weir_ring::geometry::BLOCK_BYTES;
    use weir_ring::{Clock, Ledger, RingSpec, Words, Writer, WriterKind, memory};

    // Block types. Source: draft-ietf-opsawg-pcapng, "Block Types".
    const ENHANCED_PACKET: u32 = 6;
    const INTERFACE_STATISTICS: u32 = 5;

    #[test]
    fn what_was_taken_is_in_the_file_when_a_sources_thread_panics() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.pcapng");
        let words = ["weir", "capture", "gen:", "--write", path.to_str().unwrap()];
        let Command::Capture(args) = Cli::of(words).unwrap().command else { panic!() };
        let plan = CapturePlan::new(&args).unwrap();
        let journal = Arc::new(Journal::default());
        let noting = Arc::clone(&journal);
        let probe = Arc::new(Probe::with_listener(move |event| noting.note(event)).unwrap());
        let spec = SourceSpec::new("gen:", |feeds| {
            let setup =
                Setup { feeds, ring_bytes: 4 << 20, promiscuous: false, ..Setup::default() };
            let mut is_over = false;
            PlainEngine::ethernet("a test").open(Info::default(), setup, move |input, _| {
                assert!(!std::mem::replace(&mut is_over, true), "a bug of ours");
                (0..7)
                    .for_each(|_| input.push(&Meta { wire_len: 60, ..Meta::default() }, &[0; 60]));
                Ok(Pumped::More)
            })
        });
        let (id, own) = probe.open(spec, vec![Feed::default().into()]).unwrap();
        let subscriptions = Arc::new(Subscriptions::of_one(id, own[0]));
        let stop = Arc::new(AtomicBool::new(false));
        let is_complete = Arc::default();
        let so_far =
            SoFar::new(Arc::clone(&probe), Arc::clone(&journal), Arc::clone(&subscriptions));
        let so_far = Arc::new(so_far);
        let (plan, stop, probe) = (&plan, &stop, &probe);
        let (control, start_ns) = (None, 0);
        let report_asked = Arc::default();
        let run = Run {
            plan,
            stop,
            probe,
            journal,
            subscriptions,
            so_far,
            is_complete,
            control,
            metrics: None,
            start_ns,
            report_asked,
        };
        let panic =
            panic_of(|| run.drive(Rights::Keep, &|| ()).map(drop)).expect_err("it is passed on");
        assert_eq!(panic.downcast_ref(), Some(&"a bug of ours"));
        // The blocks of the file: type and length, 32 bits each, and contents.
        let (file, mut at, mut types) = (std::fs::read(&path).unwrap(), 0, Vec::new());
        while at < file.len() {
            let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap());
            types.push(word(at));
            at += word(at + 4) as usize;
        }
        let count = |of: u32| types.iter().filter(|block| **block == of).count();
        assert_eq!((count(ENHANCED_PACKET), count(INTERFACE_STATISTICS)), (7, 1), "{types:?}");
    }

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
        // The first data block, past the part that was read.
        for word in &ring.memory().words()[(BLOCK_BYTES as usize + 7 * 92) / 8..][..64] {
            word.store(u64::MAX, Ordering::Relaxed);
        }
        let failure = consumer.step(u64::MAX).unwrap_err();

        let ledger = Ledger { offered: 12, captured: 12, ..Ledger::default() };
        let source = SourceResult { ledger, lives: 1, ..SourceResult::default() };
        let mut consumer_result = ConsumerResult {
            name: "count",
            delivered: consumer.delivered(),
            by_interface: consumer.by_interface(),
            interfaces: vec![consumer.rings().interfaces(0)],
            failure: Some(Arc::new(failure)),
            ..Default::default()
        };
        consumer_result.account(
            Count { frames: 7, wire_bytes: 420 },
            consumer.rings().unread(),
            false,
        );
        assert_eq!((consumer_result.ring_drops, consumer_result.store_drops), (5, 0));
        let result = RunResult {
            sources: vec![source],
            feeds: Vec::new(),
            consumers: vec![consumer_result],
            duration: Duration::from_secs(1),
            rates: None,
        };
        assert_eq!((result.report().unexplained(), result.report().lost()), (0, 5));
        assert!(result.report().json().contains(r#""drops":{"ring":5,"store":0}"#));
        assert!(result.report().text().contains("drop ring"));
        assert!(result.errors()[0].contains("corrupt"), "{:?}", result.errors());
    }
}
