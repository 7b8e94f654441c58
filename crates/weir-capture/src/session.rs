//! Sources on threads: opened where they belong, started together, stopped together.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_ring::wake::Sleeper;
use weir_ring::{Ledger, Mapping, Ring};

use crate::error::{CaptureError, error_text};
use crate::feed::change::Change;
use crate::feed::control::{FeedControl, FeedHandle, FeedSlot};
use crate::feed::counts::of_all_feeds;
use crate::feed::interfaces::InterfaceLedger;
use crate::feed::location::FilterLocation;
use crate::feed::pace::Pace;
use crate::kernel::xdp_owner;
use crate::source::{Info, Pumped, Source, SourceEvent};

/// How long a source works before its thread looks at the stop flag: what Ctrl-C waits for.
const PUMP_LIMIT: Duration = Duration::from_millis(20);

/// Opens a source; runs on the source's own thread, which may have entered a network namespace.
pub type Opener = Box<dyn FnOnce() -> Result<Box<dyn Source>, CaptureError> + Send>;

/// One source on its thread.
struct Worker {
    info: Info,
    feeds: Vec<FeedHandle>,
    control: Arc<dyn FeedControl>,
    go: Option<Sender<()>>,
    started: Receiver<Result<Info, CaptureError>>,
    shared: Arc<Shared>,
    thread: JoinHandle<Outcome>,
}

/// Changes sources that run, from any thread.
#[derive(Clone)]
pub struct Remote {
    sources: Vec<Reached>,
}

/// One of them.
#[derive(Clone)]
struct Reached {
    control: Arc<dyn FeedControl>,
    feeds: Vec<FeedSlot>,
    shared: Arc<Shared>,
}

impl Remote {
    /// Changes what feed number `feed` of source number `source` chooses; it holds when this returns. The calling thread does
    /// the work, so that no frame waits for it.
    ///
    /// # Errors
    /// The source's; or [`CaptureError::Ended`].
    pub fn change(&self, source: usize, feed: usize, change: Change) -> Result<(), CaptureError> {
        let Reached { control, feeds, shared } =
            self.sources.get(source).ok_or(CaptureError::Ended)?;
        let slot = feeds.get(feed).ok_or(CaptureError::NoFeed)?;
        let changed = control.change(*slot, change);
        // What is changed at a source that has ended is of no effect.
        if shared.ended.load(Ordering::Acquire) {
            return Err(CaptureError::Ended);
        }
        let location = changed?;
        if let Some(own) = lock(&shared.locations).get_mut(feed) {
            *own = location;
        }
        Ok(())
    }

    /// The ledger so far of feed number `feed` of source number `source`, or its last one; a tenth of a second old at most.
    #[must_use]
    pub fn ledger(&self, source: usize, feed: usize) -> Option<Ledger> {
        lock(&self.sources.get(source)?.shared.ledgers).get(feed).cloned()
    }

    /// Whether this source has ended.
    #[must_use]
    pub fn has_ended(&self, source: usize) -> bool {
        let has_ended = |reached: &Reached| reached.shared.ended.load(Ordering::Acquire);
        self.sources.get(source).is_none_or(has_ended)
    }
}

#[derive(Default)]
struct Shared {
    ledgers: Mutex<Vec<Ledger>>,
    /// Where each feed's frames are chosen now.
    locations: Mutex<Vec<FilterLocation>>,
    ended: AtomicBool,
    /// Why it failed, until somebody has asked.
    failure: Mutex<Option<String>>,
    /// What has become of its interfaces, until somebody has asked.
    events: Mutex<Vec<SourceEvent>>,
}

/// What a source came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What it was.
    pub info: Info,
    /// The final ledgers of its feeds.
    pub ledgers: Vec<Ledger>,
    /// The shares of its interfaces in them, feed by feed, of a source that has several.
    pub interfaces: Vec<Vec<InterfaceLedger>>,
    /// Why it ended, if not because it was told to or its frames were at an end.
    pub error: Option<CaptureError>,
}

impl Outcome {
    /// All feeds together: a frame that was offered to two of them counts twice.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        of_all_feeds(&self.ledgers)
    }
}

/// Some sources that run, or are about to.
#[derive(Default)]
pub struct Session {
    workers: Vec<Worker>,
    stop: Arc<AtomicBool>,
}

impl Session {
    /// A session without sources.
    #[must_use]
    pub fn new() -> Session {
        Session::default()
    }

    /// Opens a source on a thread of its own. Its rings exist then, and nothing is offered yet.
    ///
    /// # Errors
    /// What `opener` says.
    pub fn open(&mut self, opener: Opener) -> Result<&Info, CaptureError> {
        let (go, wait) = channel();
        let (tell_opened, opened) = channel();
        let (tell_started, started) = channel();
        let shared = Arc::new(Shared::default());
        let (stop, theirs) = (Arc::clone(&self.stop), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("weir-source".into())
            .spawn(move || work(opener, &tell_opened, &wait, &tell_started, &theirs, &stop))
            .map_err(CaptureError::os("starting a thread"))?;
        let opened = opened.recv().expect("a source thread reports before it ends")?;
        let Opened { info, feeds, control } = opened;
        lock(&shared.locations).clone_from(&info.homes);
        self.workers.push(Worker { info, feeds, control, go: Some(go), started, shared, thread });
        Ok(&self.workers[self.workers.len() - 1].info)
    }

    /// What the sources say about themselves, in the order they were opened.
    pub fn infos(&self) -> impl Iterator<Item = &Info> {
        self.workers.iter().map(|worker| &worker.info)
    }

    /// All rings, those of the first source first.
    #[must_use]
    pub fn rings(&self) -> Vec<Ring<Mapping>> {
        let feeds = self.workers.iter().flat_map(|worker| &worker.feeds);
        feeds.flat_map(|feed| feed.rings.iter().cloned()).collect()
    }

    /// Rings whose writers wait for readers: ring number, and where they join.
    #[must_use]
    pub fn paces(&self) -> Vec<(usize, Pace)> {
        let feeds = self.workers.iter().flat_map(|worker| &worker.feeds);
        let paces = feeds.flat_map(|feed| feed.rings.iter().map(|_| feed.pace.clone()));
        paces.enumerate().filter_map(|(ring, pace)| Some((ring, pace?))).collect()
    }

    /// What changes these sources while they run, if they were set up for it.
    #[must_use]
    pub fn remote(&self) -> Remote {
        let reached = |worker: &Worker| Reached {
            control: Arc::clone(&worker.control),
            feeds: worker.feeds.iter().map(|feed| feed.slot).collect(),
            shared: Arc::clone(&worker.shared),
        };
        Remote { sources: self.workers.iter().map(reached).collect() }
    }

    /// Starts all sources; the sleeper returned is woken by any of them, ring by ring as in
    /// [`rings`](Session::rings).
    ///
    /// # Errors
    /// The first source's that cannot start. The others have run for a moment then; stop the session
    /// to take them down.
    pub fn start(&mut self) -> Result<Sleeper, CaptureError> {
        let mut sleepers = self.start_with(1)?;
        Ok(sleepers.pop().expect("as many as were asked for"))
    }

    /// The same for several consumers, each with a sleeper of its own.
    ///
    /// # Errors
    /// As [`start`](Session::start).
    pub fn start_with(&mut self, consumers: usize) -> Result<Vec<Sleeper>, CaptureError> {
        let mut sleepers = Vec::new();
        for _ in 0..consumers {
            let sleeper = Sleeper::new(self.rings().len())?;
            let mut line = 0;
            for worker in &self.workers {
                for feed in &worker.feeds {
                    let notify = feed.notify.as_ref().map(OwnedFd::try_clone).transpose();
                    let notify = notify.map_err(CaptureError::os("duplicating an eventfd"))?;
                    worker.control.attach(feed.slot, sleeper.waker_with(notify)?, line)?;
                    line += feed.rings.len();
                }
            }
            sleepers.push(sleeper);
        }
        for worker in &mut self.workers {
            if let Some(go) = worker.go.take() {
                // A thread that is gone has said why already, or panicked: `started` tells.
                let _ = go.send(());
            }
        }
        for worker in &mut self.workers {
            worker.info = worker.started.recv().expect("a source thread says how it started")?;
        }
        Ok(sleepers)
    }

    /// The ledgers so far of all feeds, those of the first source first; a tenth of a second old at most.
    #[must_use]
    pub fn ledgers(&self) -> Vec<Ledger> {
        self.workers.iter().flat_map(|worker| lock(&worker.shared.ledgers).clone()).collect()
    }

    /// Whether every source is at its end. One that fails ends alone: its ledger is closed, and the others go on.
    #[must_use]
    pub fn ended(&self) -> bool {
        let ended = |worker: &Worker| worker.shared.ended.load(Ordering::Acquire);
        // A thread that is gone without having said so has panicked.
        let panicked = |worker: &Worker| worker.thread.is_finished() && !ended(worker);
        self.workers.iter().all(ended) || self.workers.iter().any(panicked)
    }

    /// The sources that have failed since this was asked before, and why.
    #[must_use]
    pub fn failures(&self) -> Vec<(&Info, String)> {
        let failed = |worker: &Worker| {
            worker.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        self.workers.iter().filter_map(|worker| Some((&worker.info, failed(worker)?))).collect()
    }

    /// What has become of the interfaces of sources that have several, since this was asked before.
    #[must_use]
    pub fn events(&self) -> Vec<(&Info, SourceEvent)> {
        let of = |worker: &'_ Worker| std::mem::take(&mut *lock(&worker.shared.events));
        let all = self.workers.iter().map(|worker| (&worker.info, of(worker)));
        all.flat_map(|(info, events)| events.into_iter().map(move |event| (info, event))).collect()
    }

    /// Tells all sources to stop and drain; their rings are closed soon after.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Stops all sources and waits for their final ledgers.
    ///
    /// # Panics
    /// If a source thread panicked: a bug of ours, passed on.
    #[must_use]
    pub fn finish(mut self) -> Vec<Outcome> {
        self.stop();
        let workers = std::mem::take(&mut self.workers);
        let join = |mut worker: Worker| {
            drop(worker.go.take());
            worker.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
        for mut worker in self.workers.drain(..) {
            drop(worker.go.take());
            let _ = worker.thread.join();
        }
    }
}

struct Opened {
    info: Info,
    feeds: Vec<FeedHandle>,
    control: Arc<dyn FeedControl>,
}

/// The life of a source's thread. Whoever ends the session early drops the senders, and each `recv`
/// here then fails: the source is dropped, which undoes what it attached.
fn work(
    opener: Opener,
    tell_opened: &Sender<Result<Opened, CaptureError>>,
    wait: &Receiver<()>,
    tell_started: &Sender<Result<Info, CaptureError>>,
    shared: &Shared,
    stop: &AtomicBool,
) -> Outcome {
    let nothing = Outcome::default;
    let mut source = match opener().map_err(xdp_owner::with_owner) {
        Ok(source) => {
            let (info, feeds) = (source.info().clone(), source.control().feeds());
            let _ = tell_opened.send(Ok(Opened { info, feeds, control: source.control() }));
            source
        }
        Err(error) => {
            let _ = tell_opened.send(Err(error));
            return nothing();
        }
    };
    let Ok(()) = wait.recv() else { return nothing() };
    if let Err(error) = source.start() {
        let _ = tell_started.send(Err(xdp_owner::with_owner(error)));
        return nothing();
    }
    let _ = tell_started.send(Ok(source.info().clone()));
    let error = pump(source.as_mut(), shared, stop);
    if let Some(error) = &error {
        *lock(&shared.failure) = Some(error_text(error));
    }
    shared.ended.store(true, Ordering::Release);
    let (ledgers, stop_error) = match source.stop().and_then(|()| source.ledgers()) {
        // Others may go on for long: their totals have its last frames, too.
        Ok(ledgers) => {
            lock(&shared.ledgers).clone_from(&ledgers);
            (ledgers, None)
        }
        Err(error) => (lock(&shared.ledgers).clone(), Some(error)),
    };
    let homes = lock(&shared.locations).clone();
    let info = Info { homes, ..source.info().clone() };
    let interfaces = interfaces(source.as_ref());
    Outcome { info, ledgers, interfaces, error: error.or(stop_error) }
}

/// What cannot be read has kept the ledgers from it, too, which is told.
fn interfaces(source: &dyn Source) -> Vec<Vec<InterfaceLedger>> {
    let control = source.control();
    let of = |feed: &FeedHandle| control.interfaces(feed.slot).unwrap_or_default();
    control.feeds().iter().map(of).collect()
}

fn pump(source: &mut dyn Source, shared: &Shared, stop: &AtomicBool) -> Option<CaptureError> {
    while !stop.load(Ordering::Acquire) {
        let pumped = source.pump(PUMP_LIMIT);
        lock(&shared.events).extend(source.take_events());
        match pumped {
            Ok(Pumped::More) => {}
            Ok(Pumped::Ended) => return None,
            Err(error) => return Some(error),
        }
        match source.ledgers() {
            Ok(ledgers) => *lock(&shared.ledgers) = ledgers,
            Err(error) => return Some(error),
        }
    }
    None
}

/// Ledgers are plain numbers: one left by a panicking thread is as good as any.
fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use weir_filter::block::Entry;
    use weir_frame::record::Meta;
    use weir_ring::Clock;

    use super::*;
    use crate::feed::Feed;
    use crate::feed::fanout::Fanout;
    use crate::feed::feeds::Feeds;
    use crate::setup::Setup;

    /// Two frames of one host, and between them a long time in which its thread has no eye for anything else.
    struct Busy {
        info: Info,
        feeds: Feeds,
        fanout: Fanout,
        in_between: Sender<()>,
        go_on: Receiver<()>,
    }

    impl Source for Busy {
        fn info(&self) -> &Info {
            &self.info
        }

        fn control(&self) -> Arc<dyn FeedControl> {
            self.feeds.control()
        }

        fn start(&mut self) -> Result<(), CaptureError> {
            Ok(())
        }

        fn pump(&mut self, _: Duration) -> Result<Pumped, CaptureError> {
            let mut frame = [0; 60];
            frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
            frame[16..18].copy_from_slice(&46u16.to_be_bytes());
            frame[26..34].copy_from_slice(&[10, 0, 0, 1, 192, 0, 2, 1]);
            let meta = Meta { wire_len: 60, ..Meta::default() };
            self.fanout.push(&meta, &frame);
            self.in_between.send(()).expect("the test listens");
            let _ = self.go_on.recv();
            self.fanout.push(&meta, &frame);
            self.fanout.publish();
            Ok(Pumped::Ended)
        }

        fn stop(&mut self) -> Result<(), CaptureError> {
            self.feeds.end();
            self.fanout.close();
            self.feeds.count(Ledger { offered: 2, ..Ledger::default() });
            Ok(())
        }
    }

    #[test]
    fn a_block_list_is_changed_without_the_thread_that_moves_frames() {
        let setup = Setup {
            feeds: vec![Feed::default()],
            ring_bytes: 4 << 20,
            promiscuous: false,
            may_change: true,
        };
        let ((in_between, is_in_between), (let_go, go_on)) = (channel(), channel());
        let mut session = Session::new();
        session
            .open(Box::new(move || {
                let (feeds, fanout) =
                    Feeds::create_one(&setup, Clock::Realtime, Box::new(|_| Ok(())))?;
                let info = Info { homes: feeds.locations(), ..Info::default() };
                Ok(Box::new(Busy { info, feeds, fanout, in_between, go_on }) as Box<dyn Source>)
            }))
            .unwrap();
        let _sleeper = session.start().unwrap();
        is_in_between.recv().unwrap();
        let (remote, (tell, told)) = (session.remote(), channel());
        let asks = std::thread::spawn({
            let remote = remote.clone();
            move || {
                let add: Vec<Entry> = vec!["10.0.0.1".parse().unwrap()];
                let _ = tell.send(remote.change(0, 0, Change::Block { remove: Vec::new(), add }));
            }
        });
        let changed = told.recv_timeout(Duration::from_secs(10));
        let_go.send(()).unwrap();
        assert!(matches!(changed, Ok(Ok(()))), "{changed:?}");
        asks.join().unwrap();
        while !session.ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = remote.change(0, 0, Change::Block { remove: Vec::new(), add: Vec::new() });
        assert!(matches!(ended, Err(CaptureError::Ended)), "{ended:?}");
        let outcome = session.finish();
        let ledger = &outcome[0].ledgers[0];
        assert_eq!((ledger.captured, ledger.blocked), (1, 1), "{ledger:?}");
    }
}
