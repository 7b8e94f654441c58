//! Counters of a run while it lasts, for SIGUSR1, `--json-every`, `weir status --control` and `--metrics`.

mod rates;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::Info;
use weir_consumer::thread::Observer;
use weir_probe::{ConsumerId, Probe, ProbeError, SourceId};
use weir_ring::Ledger;
use weir_store::recorder::RecorderReport;

use crate::journal::{Fate, Journal, NotJoined};
use crate::run_result::{ConsumerResult, FeedResult, RunResult, SourceNow, SourceResult};
use crate::sources::{InForce, OpenSource, Subscribed, Subscriptions};
use rates::{Readings, Totals};

/// Interval of a recorder's reports.
const RECORDER_EVERY: Duration = Duration::from_millis(100);

/// The counters of a run, for any thread.
pub struct SoFar {
    probe: Arc<Probe>,
    journal: Arc<Journal>,
    subscriptions: Arc<Subscriptions>,
    begin: OnceLock<Instant>,
    consumers: Mutex<Vec<ConsumerSoFar>>,
    readings: Mutex<Readings>,
    /// Held from reading the ledgers until they are recorded: counters of the older one of two readings are not to
    /// replace those of the newer one.
    counting: Mutex<()>,
}

/// A consumer at work.
struct ConsumerSoFar {
    name: &'static str,
    id: ConsumerId,
    observer: Observer,
    recorder: RecorderSoFar,
}

/// How far a recorder is. Clones are the same.
#[derive(Clone, Default)]
pub struct RecorderSoFar(Arc<Mutex<Option<RecorderReport>>>);

impl RecorderSoFar {
    /// Keeps the report of a recorder if the last one is old. Called after each step of any consumer.
    pub fn tell(&self, due: &mut Option<Instant>, report: impl FnOnce() -> Option<RecorderReport>) {
        let now = Instant::now();
        if due.is_some_and(|due| now < due) {
            return;
        }
        *due = Some(now + RECORDER_EVERY);
        self.keep(report());
    }

    /// Keeps this report, the last one of a recorder that has ended for example.
    pub fn keep(&self, report: Option<RecorderReport>) {
        *locked(&self.0) = report;
    }
}

impl SoFar {
    pub fn new(
        probe: Arc<Probe>,
        journal: Arc<Journal>,
        subscriptions: Arc<Subscriptions>,
    ) -> SoFar {
        SoFar {
            probe,
            journal,
            subscriptions,
            begin: OnceLock::new(),
            consumers: Mutex::default(),
            readings: Mutex::default(),
            counting: Mutex::default(),
        }
    }

    /// A consumer has started; the main one is the first.
    pub fn add_consumer(
        &self,
        name: &'static str,
        id: ConsumerId,
        observer: Observer,
        recorder: RecorderSoFar,
    ) {
        locked(&self.consumers).push(ConsumerSoFar { name, id, observer, recorder });
    }

    /// The sources have started.
    pub fn begins(&self, at: Instant) {
        if self.begin.set(at).is_ok() {
            locked(&self.readings).take(at, Totals::default());
        }
    }

    /// Whether the sources have started.
    pub fn has_begun(&self) -> bool {
        self.begin.get().is_some()
    }

    /// Records the current ledgers of all open feeds.
    ///
    /// # Errors
    /// An engine cannot read its counters.
    pub fn count(&self) -> Result<(), ProbeError> {
        let _counting = locked(&self.counting);
        self.journal.count(self.probe.ledgers()?);
        Ok(())
    }

    /// Takes a reading that later ones are compared with. The main thread does so once a second.
    pub fn read(&self) {
        let totals = self.totals(&self.ledger(), &self.consumers());
        locked(&self.readings).take(Instant::now(), totals);
    }

    /// Result so far. Frames that consumers have not read yet are `waiting`.
    pub fn result(&self, in_force: Vec<InForce>) -> RunResult {
        // Consumers first: the ledger has all that they had then, and more.
        let mut consumers = self.consumers();
        let ids: Vec<ConsumerId> = locked(&self.consumers).iter().map(|one| one.id).collect();
        // Without new ones the last known ledgers stand.
        let _ = self.count();
        let feeds = self.feeds(in_force);
        let mut sources = self.sources(&feeds, Journal::fate);
        for (at, (source, open)) in sources.iter_mut().zip(&self.subscriptions.sources).enumerate()
        {
            let mut own = self.subscriptions.feeds.iter().filter(|feed| feed.source == at);
            let has_ended = self.journal.has_ended(open.id);
            let is_open =
                !has_ended && own.any(|feed| self.probe.feed_of(feed.subscription).is_some());
            source.now = Some(SourceNow { is_open, has_ended });
        }
        let mut total = Ledger::default();
        sources.iter().for_each(|source| total.add(&source.ledger));
        for (consumer, id) in consumers.iter_mut().zip(ids) {
            // One that has ended reads no more.
            if consumer.has_ended == Some(true) {
                continue;
            }
            let NotJoined { refused, left, let_go } = self.journal.not_joined(id);
            let past = refused + left + let_go.values().sum::<u64>();
            let waiting = i128::from(total.captured) - consumer.accounted() - i128::from(past);
            consumer.waiting = Some(u64::try_from(waiting).unwrap_or(0));
        }
        let rates = locked(&self.readings).rates(Instant::now(), self.totals(&total, &consumers));
        let duration = self.begin.get().map_or(Duration::ZERO, Instant::elapsed);
        RunResult { sources, feeds, consumers, duration, rates }
    }

    /// Results of the feeds so far, with the filters that are in force.
    pub fn feeds(&self, in_force: Vec<InForce>) -> Vec<FeedResult> {
        let locations = self.subscriptions.locations();
        let result = |(asked, location): (&Subscribed, _)| FeedResult {
            ledger: self.journal.ledger(asked.subscription),
            asked: asked.clone(),
            location,
            interfaces: self.journal.interfaces(asked.subscription),
        };
        let mut feeds: Vec<_> =
            self.subscriptions.feeds.iter().zip(locations).map(result).collect();
        for (feed, now) in feeds.iter_mut().zip(in_force) {
            feed.asked.takes.filter = now.filter;
            feed.asked.changes = now.changes;
        }
        feeds
    }

    /// Results of the sources so far.
    pub fn sources(
        &self,
        feeds: &[FeedResult],
        fate: fn(&Journal, SourceId) -> Fate,
    ) -> Vec<SourceResult> {
        let result = |(number, source): (usize, &OpenSource)| {
            let unknown = || Info { source: source.name.clone(), ..Info::default() };
            let own = feeds
                .iter()
                .enumerate()
                .filter(|(at, feed)| feed.asked.source == number && feed.asked.output == *at);
            let mut ledger = Ledger::default();
            own.clone().for_each(|(_, feed)| ledger.add(&feed.ledger));
            // Of the source, and told to each of them.
            ledger.missed_before = own.filter_map(|(_, feed)| feed.ledger.missed_before).max();
            let fate = fate(&self.journal, source.id);
            SourceResult {
                info: self.probe.info_of(source.id).unwrap_or_else(unknown),
                ledger,
                lives: fate.lives,
                downs: fate.downs,
                error: fate.error,
                now: None,
            }
        };
        self.subscriptions.sources.iter().enumerate().map(result).collect()
    }

    /// All feeds together, as far as they have been counted.
    pub fn ledger(&self) -> Ledger {
        let mut total = Ledger::default();
        let feeds = self.subscriptions.outputs();
        feeds.for_each(|feed| total.add(&self.journal.ledger(feed.subscription)));
        total
    }

    fn consumers(&self) -> Vec<ConsumerResult> {
        let result = |consumer: &ConsumerSoFar| ConsumerResult {
            name: consumer.name,
            delivered: consumer.observer.delivered(),
            recorder: locked(&consumer.recorder.0).clone(),
            has_ended: Some(consumer.observer.has_ended()),
            ..ConsumerResult::default()
        };
        locked(&self.consumers).iter().map(result).collect()
    }

    fn totals(&self, ledger: &Ledger, consumers: &[ConsumerResult]) -> Totals {
        let main = consumers.first().map(|consumer| consumer.delivered).unwrap_or_default();
        Totals {
            offered: ledger.offered,
            captured: ledger.captured,
            wire_bytes: ledger.wire_bytes,
            dropped: ledger.dropped(),
            delivered: main.frames,
            lapped: main.lapped,
        }
    }
}

/// Every step leaves it whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
