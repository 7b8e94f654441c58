//! `weir capture`: sources in, one consumer out, and the ledger.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use weir_capture::pace::Place;
use weir_capture::{Outcome, Session};
use weir_frame::pcapng::{Interface, Statistics};
use weir_ring::Ledger;
use weir_store::{FileError, FileWriter};

use crate::cli::CaptureArgs;
use crate::consume::{Consumer, Delivered, Null, Ordered, Printer, Rest, Step};
use crate::report::{Report, error_text};
use crate::source_name::SourceName;
use crate::sources::{Opened, open_all, ring_bytes};
use crate::units::grouped;
use crate::{EXIT_LOSS, EXIT_RAN, signals};

/// Runs the command.
pub fn run(args: &CaptureArgs) -> Result<u8> {
    let stop = signals::stop_flag()?;
    conclude(args, execute(args, &stop)?)
}

/// A run that has come to its end.
pub struct Ran {
    pub outcomes: Vec<Outcome>,
    pub delivered: Delivered,
    pub duration: Duration,
    /// Frames that were taken from the rings and that the output lost.
    pub store_drops: u64,
    /// Why the consumer could not go on.
    pub failure: Option<anyhow::Error>,
}

impl Ran {
    /// The ledger and what was delivered, to print.
    pub fn report(&self) -> Report<'_> {
        let Ran { outcomes, delivered, duration, store_drops, .. } = self;
        Report { outcomes, delivered: *delivered, duration: *duration, store_drops: *store_drops }
    }

    /// Names what became of the frames: of those taken, `kept` are safely out; `unread` are in the rings
    /// still. Each is counted where it happens, and none is derived from what was captured: the
    /// report compares them with that.
    fn account(&mut self, kept: u64, unread: u64, limited: bool) {
        let taken = self.delivered.frames;
        self.delivered.frames = kept;
        self.store_drops = taken - kept;
        match &self.failure {
            Some(failure) if !is_closed_pipe(failure) => self.store_drops += unread,
            // What the reader of a pipe did not wait for is nobody's loss.
            Some(_) => self.delivered.after_limit = std::mem::take(&mut self.store_drops) + unread,
            None if limited => self.delivered.after_limit = unread,
            // Nothing should be left. If it is, the ledger shows it as unexplained.
            None => {}
        }
    }
}

/// Captures until `stop` is set or a limit is reached.
pub fn execute(args: &CaptureArgs, stop: &AtomicBool) -> Result<Ran> {
    check(args)?;
    let mut session = Session::new();
    let Opened { interfaces, places } = open_all(&mut session, args)?;
    let rings = session.rings();
    let run = Run { args, stop, places, start_ns: now_ns() };
    if let Some(path) = &args.write {
        let file = open_file(path, &interfaces)?;
        return run.to_file(session, Ordered::new(&rings, args.merge_slack, file)?);
    }
    if args.print {
        let mut printer = Ordered::new(&rings, args.merge_slack, Printer::new(interfaces))?;
        return run.without_file(session, &mut printer);
    }
    run.without_file(session, &mut Null::new(&rings)?)
}

fn check(args: &CaptureArgs) -> Result<()> {
    if args.print && args.write.is_some() {
        bail!(
            "--print and --write are two consumers, and a run has one: use --write - | tcpdump -r -"
        );
    }
    if let Some(path) = &args.write {
        check_not_a_source(path, &args.sources)?;
    }
    if args.snaplen == 0 {
        bail!("--snaplen 0 keeps nothing; use 1 or more (14 keeps the Ethernet header)");
    }
    if let Some(path) = args.write.as_deref()
        && (path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/"))
    {
        bail!(
            "{}: writing into a folder (the recorder) is not in this release; name a file",
            path.display()
        );
    }
    check_memory(args)
}

/// Rings are memory that cannot be swapped out, and the kernel hands out what starves everybody else.
fn check_memory(args: &CaptureArgs) -> Result<()> {
    let wanted = ring_bytes(args).saturating_mul(args.sources.len() as u64);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    if let Some(kib) = kib.filter(|&kib| wanted >> 10 > kib) {
        bail!(
            "--ring-size: rings of {} MiB in all are more than the {} MiB of memory that are free \
             here; ask for less",
            grouped(wanted >> 20),
            grouped(kib >> 10)
        );
    }
    Ok(())
}

fn open_file(path: &Path, interfaces: &[Interface]) -> Result<FileWriter> {
    if path == Path::new("-") {
        // Not `io::stdout()` itself: it looks for line ends, and frames would come out in two pieces.
        let stdout = io::stdout().as_fd().try_clone_to_owned().context("standard output")?;
        Ok(FileWriter::pipe(File::from(stdout), "standard output", interfaces)?)
    } else {
        Ok(FileWriter::create(path, interfaces)?)
    }
}

/// Writing into the file that is being read would empty it first.
fn check_not_a_source(path: &Path, sources: &[SourceName]) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    let target = inode(path).filter(|_| path.is_file());
    for source in sources {
        if let SourceName::File(file) = source
            && target.is_some()
            && inode(file) == target
        {
            bail!("--write {} is the file that {source} reads; write to another", path.display());
        }
    }
    Ok(())
}

/// What a run needs throughout.
struct Run<'a> {
    args: &'a CaptureArgs,
    stop: &'a AtomicBool,
    places: Vec<(usize, Place)>,
    start_ns: u64,
}

impl Run<'_> {
    /// Moves frames until somebody has had enough, then stops the sources and takes the rest.
    fn drive(&self, mut session: Session, consumer: &mut dyn Consumer) -> Result<Ran> {
        let mut rest = Rest::new(session.start()?);
        for info in session.infos() {
            let hook = info.hook.map_or_else(String::new, |hook| format!(" at {hook}"));
            eprintln!("weir: {}: {}{hook}: {}", info.source, info.engine, info.why);
            for note in &info.notes {
                eprintln!("weir: {}: {note}", info.source);
            }
        }
        let begin = Instant::now();
        let mut live = Live::new(begin);
        let failure = loop {
            let step = consumer.step(self.left(consumer));
            self.show_progress(consumer);
            match step {
                Ok(Step::Ended) => break None,
                Ok(Step::Busy) => rest.busy(),
                Ok(step) => {
                    let rested = match step {
                        Step::Waiting => rest.wait(consumer),
                        _ => rest.idle(consumer),
                    };
                    if let Err(error) = rested {
                        break Some(error);
                    }
                }
                Err(error) => break Some(error),
            }
            let over = self.args.duration.is_some_and(|limit| begin.elapsed() >= limit);
            if over || self.left(consumer) == 0 || signals::is_set(self.stop) || session.ended() {
                break None;
            }
            live.tick(&session, consumer);
        };
        let duration = begin.elapsed();
        let outcomes = session.finish();
        // The rings outlive their sources: what was captured up to the stop is still to be taken.
        let failure = failure.or_else(|| self.take_rest(consumer).err());
        let delivered = consumer.delivered();
        Ok(Ran { outcomes, delivered, duration, store_drops: 0, failure })
    }

    fn left(&self, consumer: &dyn Consumer) -> u64 {
        let taken = consumer.delivered().frames;
        self.args.frames.map_or(u64::MAX, |limit| limit.saturating_sub(taken))
    }

    /// Lets files that wait for this consumer go on.
    fn show_progress(&self, consumer: &dyn Consumer) {
        for (ring, place) in &self.places {
            place.reached(consumer.ordinal(*ring));
        }
    }

    /// Reads the closed rings to their ends, or to the limit.
    fn take_rest(&self, consumer: &mut dyn Consumer) -> Result<()> {
        let patience = self.args.merge_slack + Duration::from_secs(1);
        let mut moved = Instant::now();
        while self.left(consumer) > 0 {
            let step = consumer.step(self.left(consumer))?;
            self.show_progress(consumer);
            match step {
                Step::Ended => break,
                Step::Busy => moved = Instant::now(),
                // A source that failed at its stop may leave a ring open.
                _ if moved.elapsed() > patience => break,
                Step::Idle | Step::Waiting => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        consumer.flush()
    }

    fn to_file(&self, session: Session, mut consumer: Ordered<FileWriter>) -> Result<Ran> {
        let mut ran = self.drive(session, &mut consumer)?;
        if ran.failure.is_none() {
            let statistics = self.statistics(&ran.outcomes, consumer.sink.frames());
            ran.failure = consumer.sink.finish(&statistics).err().map(Into::into);
        }
        let (kept, unread) = (consumer.sink.kept(), consumer.unread());
        ran.account(kept, unread, self.args.frames.is_some());
        Ok(ran)
    }

    fn without_file(&self, session: Session, consumer: &mut dyn Consumer) -> Result<Ran> {
        let mut ran = self.drive(session, consumer)?;
        ran.account(ran.delivered.frames, consumer.unread(), self.args.frames.is_some());
        Ok(ran)
    }

    /// The statistics blocks at the end of a file, one per interface.
    fn statistics(&self, outcomes: &[Outcome], delivered: u64) -> Vec<Statistics> {
        let end_ns = now_ns();
        let one = |(id, outcome): (usize, &Outcome)| Statistics {
            interface_id: id as u32,
            ts_ns: end_ns,
            start_ns: Some(self.start_ns),
            end_ns: Some(end_ns),
            received: Some(outcome.ledger.offered),
            interface_drops: outcome.ledger.missed_before,
            filter_accepted: Some(outcome.ledger.offered - outcome.ledger.filtered),
            os_drops: Some(outcome.ledger.dropped()),
            delivered: (outcomes.len() == 1).then_some(delivered),
        };
        outcomes.iter().enumerate().map(one).collect()
    }
}

/// Prints the ledger and says how it went.
fn conclude(args: &CaptureArgs, ran: Ran) -> Result<u8> {
    let report = ran.report();
    let into_pipe = args.write.as_deref() == Some(Path::new("-"));
    let text = if args.json { report.json() + "\n" } else { report.text() };
    if into_pipe || (args.print && !args.json) {
        eprint!("{text}");
    } else {
        // A closed standard output is its reader's choice, not a failure of the capture.
        let _ = write!(io::stdout(), "{text}");
    }
    let (lost, unexplained) = (report.lost(), report.unexplained());
    match ran.failure {
        // Whoever reads a pipe may leave when it has seen enough.
        Some(failure) if is_closed_pipe(&failure) => match failure.downcast_ref::<FileError>() {
            Some(gone) => eprintln!("weir: {gone}"),
            None => eprintln!("weir: standard output: its reader has gone"),
        },
        Some(failure) => return Err(failure),
        None => {}
    }
    if let Some(error) = ran.outcomes.iter().find_map(|outcome| outcome.error.as_ref()) {
        bail!("{}", error_text(error));
    }
    if unexplained != 0 {
        bail!(
            "the ledger does not close: {unexplained} frames are unexplained, which is a fault of Weir's; please report it with the ledger above"
        );
    }
    if args.fail_on_loss && lost > 0 {
        eprintln!("weir: {} frames were lost (--fail-on-loss)", grouped(lost));
        return Ok(EXIT_LOSS);
    }
    Ok(EXIT_RAN)
}

fn is_closed_pipe(failure: &anyhow::Error) -> bool {
    let io_error = failure.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    matches!(failure.downcast_ref(), Some(FileError::PipeClosed { .. }))
        || io_error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// One line a second on standard error.
struct Live {
    next: Instant,
    last: (Instant, Delivered),
    tty: bool,
}

impl Live {
    fn new(begin: Instant) -> Live {
        let next = begin + Duration::from_secs(1);
        Live { next, last: (begin, Delivered::default()), tty: io::stderr().is_terminal() }
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
            "weir: {:.3} Mpps {:.3} Gbit/s | captured {} dropped {} lapped {}{end}",
            frames / seconds / 1e6,
            bits / seconds / 1e9,
            grouped(total.captured),
            grouped(total.dropped()),
            grouped(delivered.lapped),
        );
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}
