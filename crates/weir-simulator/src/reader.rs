//! A consumer of the simulation: the real consumer, with its updates, its sleeper and its account.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_consumer::thread::take_changes;
use weir_consumer::{
    Begin, Consumer, ConsumerError, Delivered, FeedChange, FrameSource, JoinedFeed, Null, Ordered,
    Step,
};
use weir_probe::runtime::updates::Updates;
use weir_probe::{ConsumerId, FeedId, Joined, Update};
use weir_ring::wake::{RING_GAP, Sleeper, Woken};

use crate::account::{Account, Facts};
use crate::broken::{broken, hold};
use crate::planted::Planted;
use crate::sink::Gather;

/// Longer than any run: frames are delivered out of order only if a ring is half full.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Lines of a consumer's sleeper.
const LINES: usize = 64;
/// From this fill level on, a consumer may deliver frames while other rings are empty (`weir_consumer::merge`).
const PRESSED: f64 = 0.5;

/// The kind of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counts frames in ring memory.
    Counts,
    /// Merges frames, and waits for nothing.
    Merges,
    /// Merges frames, and waits for rings that are empty.
    Waits,
}

/// A message that the consumer got, until its account takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedMessage {
    /// The consumer reads this feed from now on.
    Joined(FeedId),
    /// The consumer reads this feed only up to these ordinals, one for each ring.
    Left(FeedId, Vec<u64>),
}

/// The feeds of a consumer, as the probe gives them.
struct Reading {
    sleeper: Arc<Sleeper>,
    updates: Arc<Updates>,
    /// Updates that were taken from the probe and not yet given to the consumer.
    waiting: VecDeque<Update>,
    told: Vec<FeedMessage>,
    planted: Option<Planted>,
}

impl FrameSource for Reading {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        self.waiting.extend(self.updates.take());
        let (told, planted) = (&mut self.told, self.planted);
        let change = |update| match update {
            Update::Joined(Joined { feed, source, rings, first_line, .. }) => {
                told.push(FeedMessage::Joined(feed));
                let (key, output, label) = (feed.number(), source.number() as usize, String::new());
                Some(FeedChange::Joined(JoinedFeed {
                    key,
                    output,
                    label,
                    rings,
                    first_line,
                    channel: None,
                    begin: Begin::First,
                }))
            }
            Update::Left(feed, until) => {
                told.push(FeedMessage::Left(feed, until.clone()));
                let is_heeded = planted != Some(Planted::LeaveIgnored);
                is_heeded.then_some(FeedChange::Left { key: feed.number(), until })
            }
        };
        self.waiting.drain(..).filter_map(change).collect()
    }

    fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// A consumer with its account.
pub struct Reader {
    /// The id of the consumer in the probe.
    pub id: ConsumerId,
    kind: Kind,
    reading: Reading,
    consumer: Box<dyn Consumer>,
    gather: Gather,
    account: Account,
    /// Whether the consumer stands still.
    pub is_stalled: bool,
    is_asleep: bool,
    /// Time of the last wake-up.
    woken_at: Instant,
    planted: Option<Planted>,
}

impl Reader {
    /// Creates a consumer that reads nothing yet. Also returns its sleeper and its updates, through which the probe
    /// wakes and informs it.
    #[must_use]
    pub fn new(
        id: ConsumerId,
        kind: Kind,
        planted: Option<Planted>,
    ) -> (Reader, Arc<Sleeper>, Arc<Updates>) {
        let sleeper = Arc::new(Sleeper::new(LINES).expect("descriptors"));
        let updates = Arc::new(Updates::default());
        let reading = Reading {
            sleeper: Arc::clone(&sleeper),
            updates: Arc::clone(&updates),
            waiting: VecDeque::new(),
            told: Vec::new(),
            planted,
        };
        // Every other consumer takes frames one by one.
        let run_frames_max = if id.number().is_multiple_of(2) { 1 } else { u64::MAX };
        let gather = Gather::new(planted, run_frames_max);
        let consumer: Box<dyn Consumer> = match kind {
            Kind::Counts => Box::new(Null::new()),
            Kind::Merges => Box::new(Ordered::new(Duration::ZERO, gather.clone())),
            Kind::Waits => Box::new(Ordered::new(FOREVER, gather.clone())),
        };
        let account = Account::default();
        let (is_stalled, is_asleep, woken_at) = (false, false, Instant::now());
        let reader = Reader {
            id,
            kind,
            reading,
            consumer,
            gather,
            account,
            is_stalled,
            is_asleep,
            woken_at,
            planted,
        };
        (reader, sleeper, updates)
    }

    /// Makes the disk refuse the next `frames` frames.
    pub fn refuse(&self, frames: u64) {
        self.gather.lock().refuses = frames;
    }

    /// Reads at most `frames_max` frames; does nothing if the consumer sleeps and nothing has woken it. Returns the
    /// messages that it got.
    pub fn step(&mut self, frames_max: u64, facts: &Facts<'_>) -> (Option<Step>, Vec<FeedMessage>) {
        if self.is_asleep && !self.is_woken() {
            return (None, Vec::new());
        }
        let taken = take_changes(&mut self.reading, self.consumer.as_mut());
        hold!(taken.is_ok(), "a feed of ours can be read: {:?}", taken.err());
        let told = std::mem::take(&mut self.reading.told);
        for one in &told {
            match one {
                FeedMessage::Joined(feed) => self.account.join(*feed),
                // For a feed without rings, the end is the number of its frames.
                FeedMessage::Left(feed, until) => {
                    let end = facts.feeds[feed].frames();
                    self.account.leave(*feed, until.first().copied().unwrap_or(end));
                }
            }
        }
        let may_press = self.consumer.rings().fill() >= PRESSED || self.account.past() > 1;
        let waits = self.kind == Kind::Waits && !may_press;
        let step = match self.consumer.step(frames_max) {
            Ok(step) => step,
            // The consumer will try again.
            Err(ConsumerError::Output(_)) => Step::Busy,
            Err(error) => broken(format!("a ring of ours is whole: {error}")),
        };
        self.look(waits, facts);
        self.check(facts);
        if matches!(step, Step::Idle | Step::Ended) {
            self.sleep();
        }
        (Some(step), told)
    }

    /// Checks the frames that were delivered.
    fn look(&mut self, waits: bool, facts: &Facts<'_>) {
        let got = self.gather.take_got();
        let names = self.gather.lock().names.clone();
        for one in &got {
            self.account.deliver(one, &names[one.meta.interface_id as usize], waits, facts);
        }
    }

    /// Checks the identities of a consumer.
    fn check(&self, facts: &Facts<'_>) {
        let mut delivered = self.consumer.delivered();
        let rings = self.consumer.rings();
        let mut unread = rings.unread();
        match self.planted {
            Some(Planted::LappedTwice) => delivered.lapped *= 2,
            Some(Planted::UnreadForgotten) if delivered.lapped > 0 => unread = 0,
            _ => {}
        }
        let (expected, wire_bytes) = self.account.expected(facts);
        hold!(
            delivered.frames + delivered.lapped + unread == expected,
            "captured = delivered + lapped + unread: {expected}, {delivered:?}, {unread}"
        );
        let is_all = delivered.lapped == 0 && unread == 0;
        hold!(
            !is_all || delivered.wire_bytes == wire_bytes,
            "bytes on the wire: {wire_bytes}, {delivered:?}"
        );
        hold!(rings.let_go() <= delivered.lapped, "what was let go is lapped: {delivered:?}");
        if self.kind == Kind::Counts {
            return;
        }
        let kept = self.consumer.kept();
        let gathered = self.gather.lock();
        let refused = gathered.refused;
        hold!(
            kept.frames + refused == delivered.frames,
            "kept + refused = delivered: {kept:?}, {refused}, {delivered:?}"
        );
        hold!(
            self.account.skipped() <= delivered.lapped,
            "what was skipped is lapped: {}, {delivered:?}",
            self.account.skipped()
        );
        for (taken, name) in self.consumer.by_interface().iter().zip(&gathered.names) {
            let own = self.account.delivered(name, facts);
            hold!(taken.frames == own, "frames of {name:?}: {taken:?}, {own}");
        }
    }

    /// Sleeps if there is nothing to read.
    fn sleep(&mut self) {
        // A waker sends no wake-ups for a while after it has woken; when that time is over, a sleeper checks by
        // itself for what it has missed. No time passes in the simulation, so wait here until it is over.
        while self.woken_at.elapsed() <= RING_GAP {
            std::hint::spin_loop();
        }
        let readers = self.consumer.rings().readers();
        let readers = readers.iter().map(|(line, reader)| (*line, reader));
        match self.reading.sleeper.sleep_on(readers, 1, Duration::ZERO) {
            Ok(Woken::Limit) => self.is_asleep = true,
            Ok(_) => self.woken_at = Instant::now(),
            Err(error) => broken(format!("a consumer can sleep: {error}")),
        }
    }

    /// Returns whether something has woken the consumer. Checks that it is woken if there is anything for it.
    fn is_woken(&mut self) -> bool {
        let none = std::iter::empty::<(usize, &weir_ring::Reader<weir_ring::Mapping>)>();
        let woken = self.reading.sleeper.sleep_on(none, 1, Duration::ZERO);
        if !matches!(woken, Ok(Woken::Limit)) {
            (self.is_asleep, self.woken_at) = (false, Instant::now());
            return true;
        }
        self.reading.waiting.extend(self.reading.updates.take());
        hold!(self.reading.waiting.is_empty(), "who is told something is woken: {:?}", self.id);
        for (_, reader) in self.consumer.rings().readers() {
            let ring = reader.ring();
            let is_due = ring.is_closed() || ring.frames_written() > reader.ordinal();
            hold!(!is_due || reader.has_ended(), "who sleeps is woken for frames: {:?}", self.id);
        }
        false
    }

    /// Returns the frames delivered and lapped, and the number of frames that the disk refused.
    #[must_use]
    pub fn totals(&self) -> (Delivered, u64) {
        (self.consumer.delivered(), self.gather.lock().refused)
    }

    /// Reads until everything is read; every ring is closed or left.
    pub fn finish(&mut self, facts: &Facts<'_>) -> Vec<FeedMessage> {
        self.refuse(0);
        // A call that stops the sources wakes all consumers, also those that read nothing.
        if self.is_asleep {
            self.is_woken();
            self.is_asleep = false;
        }
        let mut all = Vec::new();
        for turn in 0.. {
            let (step, told) = self.step(u64::MAX, facts);
            all.extend(told);
            if step == Some(Step::Ended) {
                break;
            }
            hold!(turn < 10_000, "a consumer comes to the end of closed rings: {:?}", self.id);
        }
        hold!(self.consumer.rings().unread() == 0, "all is read at the end");
        all
    }
}
