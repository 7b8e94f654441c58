//! What the probe has told of a run: how its sources fare, who reads which feed, the ledgers of feeds that are closed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_capture::error::error_text;
use weir_capture::{CaptureError, InterfaceLedger, SourceEvent};
use weir_probe::core::Event;
use weir_probe::{FeedId, ProbeEvent, SourceId, SubscriptionId};
use weir_ring::Ledger;

/// What the probe has told so far.
#[derive(Default)]
pub struct Journal {
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    sources: BTreeMap<SourceId, Fate>,
    /// Each feed that there is or was, and the subscriptions that read it.
    readers: BTreeMap<FeedId, Vec<SubscriptionId>>,
    /// Feeds that are closed.
    closed: BTreeMap<FeedId, Ledger>,
    /// What feeds counted when they were asked last.
    latest: BTreeMap<FeedId, Ledger>,
    /// The shares of interfaces in the ledgers of feeds that are closed, of sources by pattern.
    interfaces: BTreeMap<FeedId, Vec<InterfaceLedger>>,
    news: Vec<(SourceId, News)>,
    /// Some consumer cannot read a source that came back.
    has_unread: bool,
}

/// What became of a source.
#[derive(Debug, Default)]
pub struct Fate {
    /// How often it was opened: more than once if it is followed.
    pub lives: u64,
    /// How often its interface went down.
    pub downs: u64,
    /// Why it ended, or what went wrong on the way.
    pub error: Option<CaptureError>,
    /// It brings no more frames.
    is_over: bool,
    /// The probe has closed it: its ledgers are here.
    is_closed: bool,
}

/// Something that the user is to hear of.
#[derive(Debug)]
pub enum News {
    /// It is not there, or down, and is waited for.
    Missing(CaptureError),
    /// It was waited for, and is captured now.
    CameBack,
    /// It vanished, and is waited for.
    Vanished,
    /// Its interface went down.
    Down,
    /// It is up again.
    Up,
    /// One of its interfaces came or went.
    Interface(SourceEvent),
    /// It came back, and a consumer cannot read it.
    NotRead(String),
    /// It has failed, and others go on.
    Failed(String),
}

impl Journal {
    /// Takes down what the probe tells.
    pub fn note(&self, event: ProbeEvent) {
        let mut told = self.lock();
        match event {
            Event::Opened(source) => told.fate(source).lives += 1,
            Event::CameBack(source) => {
                told.fate(source).lives += 1;
                told.news.push((source, News::CameBack));
            }
            Event::Missing(source, error) => {
                told.fate(source);
                told.news.push((source, News::Missing(error)));
            }
            Event::Vanished(source, _) => told.news.push((source, News::Vanished)),
            Event::Down(source) => {
                told.fate(source).downs += 1;
                told.news.push((source, News::Down));
            }
            Event::Up(source) => told.news.push((source, News::Up)),
            Event::Ended(source) => told.fate(source).is_over = true,
            Event::Failed(source, error) => told.failed(source, error),
            Event::Trouble(source, error) => {
                told.fate(source).error.get_or_insert(error);
            }
            Event::Closed(source) => {
                let fate = told.fate(source);
                (fate.is_over, fate.is_closed) = (true, true);
            }
            Event::Reads(subscription, feed) => {
                told.readers.entry(feed).or_default().push(subscription);
            }
            Event::FeedClosed(_, feed, ledger) => {
                // One that cannot be read any more has what was read of it last.
                let latest = told.latest.remove(&feed);
                told.closed.insert(feed, ledger.or(latest).unwrap_or_default());
            }
            Event::Interface(source, event) => told.news.push((source, News::Interface(event))),
            Event::Interfaces(_, feed, interfaces) => {
                told.interfaces.insert(feed, interfaces);
            }
            Event::NotAttached(source, _, _, error) => told.not_attached(source, error),
            // The run withdraws no right.
            Event::FeedLost(..) => {}
        }
    }

    /// What the user is to hear of since this was asked last.
    pub fn take_news(&self) -> Vec<(SourceId, News)> {
        std::mem::take(&mut self.lock().news)
    }

    /// Whether no source is open or waited for.
    pub fn all_closed(&self) -> bool {
        self.lock().sources.values().all(|fate| fate.is_closed)
    }

    /// Whether a source brings no more frames.
    pub fn has_ended(&self, source: SourceId) -> bool {
        self.lock().sources.get(&source).is_some_and(|fate| fate.is_over)
    }

    /// What became of a source, to keep.
    pub fn take_fate(&self, source: SourceId) -> Fate {
        self.lock().sources.remove(&source).unwrap_or_default()
    }

    /// The subscriptions that read a feed.
    pub fn readers(&self, feed: FeedId) -> Vec<SubscriptionId> {
        self.lock().readers.get(&feed).cloned().unwrap_or_default()
    }

    /// Takes down the ledgers so far of the feeds that there are.
    pub fn count(&self, ledgers: Vec<(FeedId, Ledger)>) {
        let mut told = self.lock();
        let Told { closed, latest, .. } = &mut *told;
        latest.extend(ledgers.into_iter().filter(|(feed, _)| !closed.contains_key(feed)));
    }

    /// The ledger of a subscription: of all feeds that it has read, one after the other, as far as they have counted.
    pub fn ledger(&self, subscription: SubscriptionId) -> Ledger {
        let told = self.lock();
        let own = told.readers.iter().filter(|(_, readers)| readers.contains(&subscription));
        let counted = own.filter_map(|(feed, _)| told.closed.get(feed).or(told.latest.get(feed)));
        let mut sum: Option<Ledger> = None;
        for ledger in counted {
            match &mut sum {
                Some(sum) => sum.add(ledger),
                None => sum = Some(ledger.clone()),
            }
        }
        sum.unwrap_or_default()
    }

    /// The shares of interfaces in the ledger of a subscription whose feed is closed, of a source by pattern.
    pub fn interfaces(&self, subscription: SubscriptionId) -> Vec<InterfaceLedger> {
        let told = self.lock();
        let mut own = told.readers.iter().filter(|(_, readers)| readers.contains(&subscription));
        own.find_map(|(feed, _)| told.interfaces.get(feed).cloned()).unwrap_or_default()
    }

    /// Whether some consumer cannot read a source that came back.
    pub fn has_unread(&self) -> bool {
        self.lock().has_unread
    }

    /// Frames captured in feeds that are closed, but for these.
    pub fn captured_besides(&self, feeds: &BTreeSet<u64>) -> u64 {
        let told = self.lock();
        let others = told.closed.iter().filter(|(feed, _)| !feeds.contains(&feed.number()));
        others.map(|(_, ledger)| ledger.captured).sum()
    }

    /// Every step leaves it whole.
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    fn fate(&mut self, source: SourceId) -> &mut Fate {
        self.sources.entry(source).or_default()
    }

    fn not_attached(&mut self, source: SourceId, error: CaptureError) {
        self.has_unread = true;
        self.news.push((source, News::NotRead(error_text(&error))));
        self.fate(source).error.get_or_insert(error);
    }

    fn failed(&mut self, source: SourceId, error: CaptureError) {
        let text = error_text(&error);
        let fate = self.fate(source);
        fate.is_over = true;
        fate.error = Some(error);
        if self.sources.values().any(|fate| !fate.is_over) {
            self.news.push((source, News::Failed(text)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};
    use weir_capture::generator::MemGen;
    use weir_capture::{Feed, Setup};
    use weir_probe::{Opener, Probe, SourceSpec};

    /// Ten frames, once they are there.
    fn ten_frames(are_there: &Arc<AtomicBool>) -> SourceSpec {
        let are_there = Arc::clone(are_there);
        let open: Opener = Arc::new(move |feeds| {
            if !are_there.load(Ordering::Acquire) {
                return Err(CaptureError::NoInterface { iface: "eth9".into() });
            }
            let setup = Setup { feeds, ring_bytes: 4 << 20, promiscuous: false, may_change: false };
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
        let news = journal.take_news();
        assert!(news.iter().any(|(_, news)| matches!(news, News::NotRead(_))), "{news:?}");
        assert!(journal.has_unread() && journal.take_fate(late).error.is_some());
        assert_eq!(journal.captured_besides(&BTreeSet::new()), 10);
        assert_eq!(journal.ledger(own[0]).captured, 10);
    }
}
