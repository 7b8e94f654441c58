//! Counters of a running capture, for SIGUSR1, `--json-every`, `weir status --control` and `--metrics`.

mod rates;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::Info;
use weir_consumer::thread::{Ending, Observer};
use weir_consumer::{ConsumerError, Count, Delivered};
use weir_probe::{ConsumerId, Probe, ProbeError, SourceId};
use weir_ring::Ledger;
use weir_store::recorder::RecorderReport;

use crate::consumers::{NetdevReport, RunConsumer};
use crate::error_words::without_number;
use crate::journal::{Fate, Journal, NotJoined};
use crate::run_result::{ConsumerResult, FeedResult, RunResult, SourceNow, SourceResult};
use crate::sources::{InForce, OpenSource, Subscribed, Subscriptions};
use rates::{Readings, Totals};

/// Interval of the reports of consumers.
const REPORTS_EVERY: Duration = Duration::from_millis(100);

/// The counters of a run, which any thread can read.
pub struct SoFar {
    probe: Arc<Probe>,
    journal: Arc<Journal>,
    subscriptions: Arc<Subscriptions>,
    begin: OnceLock<Instant>,
    consumers: Mutex<Vec<ConsumerSoFar>>,
    readings: Mutex<Readings>,
    /// Held from reading the ledgers until they are recorded, so that older ledgers cannot replace newer ones.
    counting: Mutex<()>,
}

/// A consumer, its counters and its reports.
struct ConsumerSoFar {
    name: &'static str,
    id: ConsumerId,
    observer: Observer,
    reports: ReportsSoFar,
}

/// A consumer's counters at one moment.
struct Reading {
    id: ConsumerId,
    result: ConsumerResult,
    end: Option<Ending>,
}

/// The latest reports of a consumer. Clones share them.
#[derive(Clone, Default)]
pub struct ReportsSoFar(Arc<Mutex<Reports>>);

/// Reports of a consumer that are also available while it runs.
#[derive(Clone, Default)]
struct Reports {
    recorder: Option<RecorderReport>,
    netdev: Option<NetdevReport>,
}

impl ReportsSoFar {
    /// Updates the reports of a consumer if they are older than `REPORTS_EVERY`. Called after each step of the
    /// consumer.
    pub fn tell(&self, due: &mut Option<Instant>, consumer: &dyn RunConsumer) {
        let now = Instant::now();
        if due.is_some_and(|due| now < due) {
            return;
        }
        *due = Some(now + REPORTS_EVERY);
        self.keep(consumer);
    }

    /// Updates the reports of a consumer. Returns whether the consumer makes any reports.
    pub fn keep(&self, consumer: &dyn RunConsumer) -> bool {
        let reports = Reports { recorder: consumer.recorder(), netdev: consumer.netdev() };
        let has_any = reports.recorder.is_some() || reports.netdev.is_some();
        *locked(&self.0) = reports;
        has_any
    }
}

impl Reading {
    /// Assigns the captured frames that were not delivered to counters, as far as they are known now.
    fn account(&mut self, captured: u64, NotJoined { refused, let_go, .. }: NotJoined) {
        let result = &mut self.result;
        let Delivered { frames: taken, wire_bytes, .. } = result.delivered;
        result.delivered.lapped += let_go.values().sum::<u64>();
        result.delivered.frames = taken.saturating_sub(result.netdev_drops());
        // This includes frames of feeds that the consumer has not joined yet.
        let unread = i128::from(captured) - result.accounted() - i128::from(refused);
        let unread = u64::try_from(unread).unwrap_or(0);
        result.waiting = Some(unread);
        if let Some(Ending { failure, limited, kept }) = &self.end {
            // The consumer reads no more. If it did not fail, it will write the frames that it still holds at the end
            // of the run.
            result.waiting = Some(0);
            let is_finished = matches!(failure.as_deref(), None | Some(ConsumerError::Complete(_)));
            let all = Count { frames: result.delivered.frames, wire_bytes };
            result.delivered.frames = taken;
            result.account(if is_finished { all } else { *kept }, unread, *limited);
        }
        result.ring_drops += refused;
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

    /// Adds a started consumer. The main consumer must be added first.
    pub fn add_consumer(
        &self,
        name: &'static str,
        id: ConsumerId,
        observer: Observer,
        reports: ReportsSoFar,
    ) {
        locked(&self.consumers).push(ConsumerSoFar { name, id, observer, reports });
    }

    /// Records the time at which the sources were started.
    pub fn begins(&self, at: Instant) {
        if self.begin.set(at).is_ok() {
            locked(&self.readings).take(at, Totals::default());
        }
    }

    /// Returns whether the sources have started.
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

    /// Takes a reading of the counters, from which later rates are computed. The main thread calls this once a second.
    pub fn read(&self) {
        let delivered = self.consumers().first().map(|main| main.result.delivered);
        let totals = totals(&self.ledger(), delivered);
        locked(&self.readings).take(Instant::now(), totals);
    }

    /// Returns the result so far. Frames that consumers have not read yet are counted as `waiting`.
    pub fn result(&self, in_force: Vec<InForce>) -> RunResult {
        // The consumers are read before the ledgers, so that the ledgers include every frame that a consumer had taken.
        let mut consumers = self.consumers();
        let delivered = consumers.first().map(|main| main.result.delivered);
        // If the count fails, the last known ledgers are used.
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
        for consumer in &mut consumers {
            consumer.account(total.captured, self.journal.not_joined(consumer.id));
        }
        let consumers = consumers.into_iter().map(|consumer| consumer.result).collect();
        let rates = locked(&self.readings).rates(Instant::now(), totals(&total, delivered));
        let duration = self.begin.get().map_or(Duration::ZERO, Instant::elapsed);
        RunResult { sources, feeds, consumers, duration, rates }
    }

    /// Returns the results of the feeds so far, with the filters that are in force.
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

    /// Returns the results of the sources so far.
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
            // Each feed's ledger repeats this count of the whole source, so it must not be summed.
            ledger.missed_before = own.filter_map(|(_, feed)| feed.ledger.missed_before).max();
            let fate = fate(&self.journal, source.id);
            SourceResult {
                info: self.probe.info_of(source.id).unwrap_or_else(unknown),
                ledger,
                lives: fate.lives,
                downs: fate.downs,
                error: fate.error.map(|error| without_number(&error)),
                now: None,
            }
        };
        self.subscriptions.sources.iter().enumerate().map(result).collect()
    }

    /// Returns the sum of the last recorded ledgers of all feeds.
    pub fn ledger(&self) -> Ledger {
        let mut total = Ledger::default();
        let feeds = self.subscriptions.outputs();
        feeds.for_each(|feed| total.add(&self.journal.ledger(feed.subscription)));
        total
    }

    fn consumers(&self) -> Vec<Reading> {
        let reading = |consumer: &ConsumerSoFar| {
            // The end is read before the reports: if the consumer has ended, these reports are its last ones.
            let end = consumer.observer.end().cloned();
            let Reports { recorder, netdev } = locked(&consumer.reports.0).clone();
            let result = ConsumerResult {
                name: consumer.name,
                delivered: consumer.observer.delivered(),
                recorder,
                netdev,
                has_ended: Some(end.is_some()),
                failure: end.as_ref().and_then(|end| end.failure.clone()),
                ..ConsumerResult::default()
            };
            Reading { id: consumer.id, result, end }
        };
        locked(&self.consumers).iter().map(reading).collect()
    }
}

/// Returns the counters from which rates are computed; `delivered` has those of the main consumer.
fn totals(ledger: &Ledger, delivered: Option<Delivered>) -> Totals {
    let delivered = delivered.unwrap_or_default();
    Totals {
        offered: ledger.offered,
        captured: ledger.captured,
        wire_bytes: ledger.wire_bytes,
        dropped: ledger.dropped(),
        delivered: delivered.frames,
        lapped: delivered.lapped,
    }
}

/// Locks a mutex. A poisoned lock is used as well: no step leaves the data inconsistent.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
