//! Records the probe's events of a run: the state of the sources, the readers of each feed, and the ledgers of closed
//! feeds.

mod accounts;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_capture::error::error_text;
use weir_capture::{CaptureError, InterfaceLedger, SourceEvent};
use weir_client::EndReason;
use weir_probe::core::Event;
use weir_probe::{ConsumerId, FeedId, ProbeEvent, SourceId, SubscriptionId};
use weir_ring::Ledger;
use weir_serve::limits::MOVED_FEEDS_WAIT_MAX;

use accounts::Accounts;
pub use accounts::NotJoined;

/// The probe's events so far.
#[derive(Default)]
pub struct Journal {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    sources: BTreeMap<SourceId, Fate>,
    accounts: Accounts,
    notices: Vec<(Option<SourceId>, Notice)>,
}

/// The state of a source, and its history.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// How often the source was opened: more than once only if it is followed.
    pub lives: u64,
    /// How often the interface of the source went down.
    pub downs: u64,
    /// The error that ended the source, or else its first error.
    pub error: Option<String>,
    /// The source delivers no more frames.
    is_over: bool,
    /// The probe has closed the source, and its ledgers are recorded.
    is_closed: bool,
    /// When the daemon moved the feed to other rings, if they are not open yet.
    moved: Option<Instant>,
}

/// An event to be reported to the user.
#[derive(Debug)]
pub enum Notice {
    /// The source is missing or down, and the run waits for it.
    Missing(CaptureError),
    /// The source is captured again after a wait.
    CameBack,
    /// The source vanished, and the run waits for it.
    Vanished(CaptureError),
    /// The interface of the source went down.
    Down,
    /// The interface of the source is up again.
    Up,
    /// An interface joined or left the source.
    Interface(SourceEvent),
    /// The source came back, but a consumer cannot read it.
    NotRead(String),
    /// A consumer was too slow, so unread frames of a past life of the source were dropped: the consumer, and their
    /// number.
    LetGo(&'static str, u64),
    /// Changes of the interface of the source are not noticed for now.
    NotWatched(CaptureError),
    /// The source has failed, and the others go on.
    Failed(String),
}

impl Journal {
    /// Records an event of the probe.
    pub fn note(&self, event: ProbeEvent) {
        let mut state = self.lock();
        match event {
            Event::Opened(source) => state.fate(source).lives += 1,
            Event::CameBack(source) => {
                let fate = state.fate(source);
                fate.lives += 1;
                // A moved feed that is opened in time has no gap, so nothing needs to be reported.
                let moved = fate.moved.take();
                if moved.is_none_or(|moved| moved.elapsed() > MOVED_FEEDS_WAIT_MAX) {
                    state.notices.push((Some(source), Notice::CameBack));
                }
            }
            Event::Missing(source, error) => {
                state.fate(source).moved = None;
                state.notices.push((Some(source), Notice::Missing(error)));
            }
            Event::Vanished(source, error) => state.vanished(source, error),
            Event::Down(source) => {
                state.fate(source).downs += 1;
                state.notices.push((Some(source), Notice::Down));
            }
            Event::Up(source) => state.notices.push((Some(source), Notice::Up)),
            Event::Ended(source) => state.fate(source).is_over = true,
            Event::Failed(source, error) => state.failed(source, error),
            Event::NotWatched(source, error) => {
                state.notices.push((Some(source), Notice::NotWatched(error)));
            }
            Event::Trouble(source, error) => {
                state.fate(source).error.get_or_insert(error_text(&error));
            }
            Event::Closed(source) => {
                let fate = state.fate(source);
                (fate.is_over, fate.is_closed) = (true, true);
            }
            Event::Reads(subscription, feed) => state.accounts.reads(subscription, feed),
            Event::FeedClosed(_, feed, ledger) => state.accounts.closed(feed, ledger),
            Event::Interface(source, event) => {
                state.notices.push((Some(source), Notice::Interface(event)))
            }
            Event::Interfaces(_, feed, interfaces) => {
                state.accounts.interfaces_of(feed, &interfaces)
            }
            Event::NotAttached(source, consumer, feed, error) => {
                state.accounts.refused(consumer, feed);
                state.not_attached(source, error);
            }
            Event::LetGo(source, consumer, feed, frames) => {
                if let Some(name) = state.accounts.let_go(consumer, feed, frames) {
                    state.notices.push((Some(source), Notice::LetGo(name, frames)));
                }
            }
            // Only a daemon withdraws access to a feed.
            Event::FeedLost(..) => {}
        }
    }

    /// Removes and returns the notices since the last call, each with its source.
    pub fn take_notices(&self) -> Vec<(Option<SourceId>, Notice)> {
        std::mem::take(&mut self.lock().notices)
    }

    /// Returns whether all sources are closed, so that none is open or waited for.
    pub fn all_closed(&self) -> bool {
        self.lock().sources.values().all(|fate| fate.is_closed)
    }

    /// Returns whether a source delivers no more frames.
    pub fn has_ended(&self, source: SourceId) -> bool {
        self.lock().sources.get(&source).is_some_and(|fate| fate.is_over)
    }

    /// Returns the state of a source so far.
    pub fn fate(&self, source: SourceId) -> Fate {
        self.lock().sources.get(&source).cloned().unwrap_or_default()
    }

    /// Removes the state of a source, and returns it.
    pub fn take_fate(&self, source: SourceId) -> Fate {
        self.lock().sources.remove(&source).unwrap_or_default()
    }

    /// Adds a consumer. Called before any feed is closed.
    pub fn add_consumer(&self, id: ConsumerId, name: &'static str) {
        self.lock().accounts.add_consumer(id, name);
    }

    /// Records that a consumer itself dropped unread frames of a past life of a source.
    pub fn note_let_go(&self, consumer: &'static str, frames: u64) {
        self.lock().notices.push((None, Notice::LetGo(consumer, frames)));
    }

    /// Records that a consumer has joined this feed. Returns the subscriptions that read the feed.
    pub fn joined(&self, consumer: ConsumerId, feed: FeedId) -> Vec<SubscriptionId> {
        self.lock().accounts.joined(consumer, feed)
    }

    /// Records that a consumer will join no more feeds.
    pub fn consumer_ended(&self, consumer: ConsumerId) {
        self.lock().accounts.consumer_ended(consumer);
    }

    /// Returns the numbers of frames in closed feeds that a consumer did not join.
    pub fn not_joined(&self, consumer: ConsumerId) -> NotJoined {
        self.lock().accounts.not_joined(consumer)
    }

    /// Records the current ledgers of open feeds.
    pub fn count(&self, ledgers: Vec<(FeedId, Ledger)>) {
        self.lock().accounts.count(ledgers);
    }

    /// Returns the ledger of a subscription: the sum over all feeds that it has read, with the last known counts of
    /// open feeds.
    pub fn ledger(&self, subscription: SubscriptionId) -> Ledger {
        self.lock().accounts.ledger(subscription)
    }

    /// Returns the ledgers of the interfaces of a source by pattern, summed over the feeds of a subscription.
    pub fn interfaces(&self, subscription: SubscriptionId) -> Vec<InterfaceLedger> {
        self.lock().accounts.interfaces(subscription)
    }

    /// Locks the state. A poisoned lock is used as well: no step leaves the state inconsistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fate(&mut self, source: SourceId) -> &mut Fate {
        self.sources.entry(source).or_default()
    }

    fn vanished(&mut self, source: SourceId, error: CaptureError) {
        let is_moved = matches!(error, CaptureError::FeedEnded { why: EndReason::Moved, .. });
        self.fate(source).moved = is_moved.then(Instant::now);
        self.notices.push((Some(source), Notice::Vanished(error)));
    }

    fn not_attached(&mut self, source: SourceId, error: CaptureError) {
        let text = error_text(&error);
        self.notices.push((Some(source), Notice::NotRead(text.clone())));
        self.fate(source).error.get_or_insert(text);
    }

    fn failed(&mut self, source: SourceId, error: CaptureError) {
        let text = error_text(&error);
        let fate = self.fate(source);
        fate.is_over = true;
        fate.error = Some(text.clone());
        if self.sources.values().any(|fate| !fate.is_over) {
            self.notices.push((Some(source), Notice::Failed(text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;
    use weir_capture::PlainEngine;
    use weir_capture::generator::MemGen;
    use weir_capture::{Feed, Info, Pumped, Setup, Source};
    use weir_frame::record::Meta;
    use weir_probe::limits::PAST_LIVES_MAX;
    use weir_probe::{Opener, Probe, SourceSpec, Update};

    /// Ten frames, once they are there.
    fn ten_frames(are_there: &Arc<AtomicBool>) -> SourceSpec {
        let are_there = Arc::clone(are_there);
        let open: Opener = Arc::new(move |feeds| {
            if !are_there.load(Ordering::Acquire) {
                return Err(CaptureError::NoInterface { iface: "eth9".into() });
            }
            let setup = Setup { feeds, ring_bytes: 4 << 20, ..Setup::default() };
            Ok(Box::new(MemGen::open("frames=10".parse()?, setup, false)?))
        });
        SourceSpec { name: "eth9".into(), open, link: None, follows: true, cpus: None }
    }

    #[test]
    fn a_source_that_comes_back_and_cannot_be_read_is_told_and_its_frames_are_known() {
        let journal = Arc::new(Journal::default());
        let noting = Arc::clone(&journal);
        let probe = Probe::with_listener(move |event| noting.note(event)).unwrap();
        let are_there = Arc::new(AtomicBool::new(false));
        let open = || probe.open(ten_frames(&are_there), vec![Feed::default().into()]).unwrap();
        let (late, own) = open();
        are_there.store(true, Ordering::Release);
        let (_, others) = open();
        // Room for one ring, which the other source has.
        let consumer = probe.add_consumer(1).unwrap();
        journal.add_consumer(consumer.id, "count");
        for subscription in [own[0], others[0]] {
            probe.attach(consumer.id, subscription).unwrap();
        }
        probe.start(late).unwrap();
        probe.look_again(late);
        let begin = Instant::now();
        while !journal.has_ended(late) {
            assert!(begin.elapsed() < Duration::from_secs(30), "it does not come back");
            std::thread::sleep(Duration::from_millis(1));
        }
        probe.stop();
        let notices = journal.take_notices();
        assert!(
            notices.iter().any(|(_, notice)| matches!(notice, Notice::NotRead(_))),
            "{notices:?}"
        );
        assert!(journal.take_fate(late).error.is_some());
        assert_eq!(
            journal.not_joined(consumer.id),
            NotJoined { refused: 10, ..NotJoined::default() }
        );
        assert_eq!(journal.ledger(own[0]).captured, 10);
    }

    #[test]
    fn a_feed_that_is_moved_is_back_without_a_word_unless_it_was_missing() {
        let probe = Probe::with_listener(|_| ()).unwrap();
        let spec = ten_frames(&Arc::new(AtomicBool::new(true)));
        let (source, _) = probe.open(spec, vec![Feed::default().into()]).unwrap();
        let feed_ended = |why| CaptureError::FeedEnded { feed: "host:lan".into(), why };
        for (why, missing, is_told) in [
            (EndReason::Moved, false, false),
            (EndReason::Moved, true, true),
            (EndReason::DaemonEnded, false, true),
        ] {
            let journal = Journal::default();
            journal.note(Event::Vanished(source, feed_ended(why)));
            if missing {
                let error = CaptureError::NoInterface { iface: "eth9".into() };
                journal.note(Event::Missing(source, error));
            }
            journal.note(Event::CameBack(source));
            let told = journal.take_notices();
            let is_back = |(_, notice): &(_, Notice)| matches!(notice, Notice::CameBack);
            assert_eq!(told.iter().any(is_back), is_told, "{told:?}");
        }
    }

    /// Brings ten frames, and vanishes then.
    fn brief(setup: Setup) -> Result<Box<dyn Source>, CaptureError> {
        let mut is_over = false;
        PlainEngine::ethernet("a test").open(Info::default(), setup, move |input, _| {
            if std::mem::replace(&mut is_over, true) {
                return Err(CaptureError::Vanished { iface: "eth9".into() });
            }
            (0..10).for_each(|_| input.push(&Meta { wire_len: 60, ..Meta::default() }, &[0; 60]));
            Ok(Pumped::More)
        })
    }

    #[test]
    fn of_feeds_that_are_closed_and_read_nothing_is_kept_but_sums() {
        const LIVES: u64 = 30;
        let journal = Arc::new(Journal::default());
        let noting = Arc::clone(&journal);
        let probe = Probe::with_listener(move |event| noting.note(event)).unwrap();
        let lives = AtomicU64::new(0);
        let open: Opener = Arc::new(move |feeds| {
            if lives.fetch_add(1, Ordering::Relaxed) >= LIVES {
                return Err(CaptureError::NoInterface { iface: "eth9".into() });
            }
            let setup = Setup { feeds, ring_bytes: 4 << 20, ..Setup::default() };
            brief(setup)
        });
        let spec = SourceSpec { follows: true, ..SourceSpec::new("eth9", |_| unreachable!()) };
        let wants = vec![Feed::default().into(), Feed::default().into()];
        let (source, own) = probe.open(SourceSpec { open, ..spec }, wants).unwrap();
        let consumers = [probe.add_consumer(1).unwrap(), probe.add_consumer(1).unwrap()];
        for consumer in &consumers {
            journal.add_consumer(consumer.id, "count");
            probe.attach(consumer.id, own[0]).unwrap();
        }
        probe.start(source).unwrap();
        let (begin, [reads, ends]) = (Instant::now(), consumers);
        let (mut joined, mut vanished) = (0, 0);
        while vanished < LIVES {
            assert!(begin.elapsed() < Duration::from_secs(60), "{vanished} lives");
            let is_vanished =
                |(_, notice): &(Option<SourceId>, Notice)| matches!(notice, Notice::Vanished(_));
            vanished +=
                journal.take_notices().iter().filter(|notice| is_vanished(notice)).count() as u64;
            for update in reads.take_updates() {
                if let Update::Joined(feed) = update {
                    assert_eq!(journal.joined(reads.id, feed.feed), own);
                    joined += 1;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        journal.consumer_ended(ends.id);
        probe.stop();
        for update in reads.take_updates() {
            if let Update::Joined(feed) = update {
                journal.joined(reads.id, feed.feed);
                joined += 1;
            }
        }
        assert_eq!(journal.lock().accounts.feeds(), 0);
        assert_eq!(journal.ledger(own[0]).captured, 10 * LIVES);
        assert_eq!(journal.ledger(own[1]), journal.ledger(own[0]));
        // Also one that reads may be slow.
        let let_go = |id| journal.not_joined(id).let_go.values().sum::<u64>();
        assert_eq!(journal.not_joined(reads.id).left, 0);
        assert_eq!(10 * joined + let_go(reads.id), 10 * LIVES);
        // It had ended before, or while, the last life was closed.
        let left = journal.not_joined(ends.id).left;
        assert!(left >= 10 * PAST_LIVES_MAX as u64, "{left}");
        assert_eq!(let_go(ends.id) + left, 10 * LIVES);
    }
}
