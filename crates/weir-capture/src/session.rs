//! Sources on threads: opened where they belong, started together, stopped together.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_ring::wake::{Sleeper, Waker};
use weir_ring::{Ledger, Mapping, Ring};

use crate::error::{CaptureError, with_causes};
use crate::feed::block_lists::BlockLists;
use crate::feed::change::Change;
use crate::feed::counts::of_all_feeds;
use crate::kernel::xdp_owner;
use crate::source::{Info, Pumped, Source};

/// How long a source works before its thread looks at the stop flag: what Ctrl-C waits for.
const PUMP_LIMIT: Duration = Duration::from_millis(20);

/// The same when it has just been asked to change.
const PUMP_LIMIT_ASKED: Duration = Duration::from_millis(1);

/// Opens a source; runs on the source's own thread, which may have entered a network namespace.
pub type Opener = Box<dyn FnOnce() -> Result<Box<dyn Source>, CaptureError> + Send>;

/// One source on its thread.
struct Worker {
    info: Info,
    rings: Vec<Ring<Mapping>>,
    notify_fd: Option<OwnedFd>,
    lists: Option<BlockLists>,
    changes: Sender<Request>,
    go: Option<Sender<Option<(Waker, usize)>>>,
    started: Receiver<Result<Info, CaptureError>>,
    shared: Arc<Shared>,
    thread: JoinHandle<Outcome>,
}

/// A change that is asked for, and where to say what came of it.
struct Request {
    feed: usize,
    change: Change,
    done: Sender<Result<(), CaptureError>>,
}

/// Changes sources that run, from any thread.
#[derive(Clone)]
pub struct Remote {
    sources: Vec<Reached>,
}

/// One of them.
#[derive(Clone)]
struct Reached {
    changes: Sender<Request>,
    lists: Option<BlockLists>,
    shared: Arc<Shared>,
}

impl Remote {
    /// Changes what feed number `feed` of source number `source` chooses, and waits until it holds. A block list is made
    /// anew by the calling thread where the source's own may have frames waiting for it.
    ///
    /// # Errors
    /// The source's; or [`CaptureError::Ended`].
    pub fn change(&self, source: usize, feed: usize, change: Change) -> Result<(), CaptureError> {
        let Reached { changes, lists, shared } =
            self.sources.get(source).ok_or(CaptureError::Ended)?;
        if let (Change::Block { remove, add }, Some(lists)) = (&change, lists) {
            let changed = lists.change(feed, remove, add);
            // Then nobody takes it over any more, and what such a list refuses is in nobody's way.
            let has_ended = shared.ended.load(Ordering::Acquire);
            return if has_ended { Err(CaptureError::Ended) } else { changed };
        }
        let (done, answer) = channel();
        changes.send(Request { feed, change, done }).map_err(|_| CaptureError::Ended)?;
        // A source that ends before it comes to the request drops it.
        answer.recv().map_err(|_| CaptureError::Ended)?
    }
}

#[derive(Default)]
struct Shared {
    ledgers: Mutex<Vec<Ledger>>,
    ended: AtomicBool,
    /// Why it failed, until somebody has asked.
    failure: Mutex<Option<String>>,
}

/// What a source came to.
#[derive(Debug)]
pub struct Outcome {
    /// What it was.
    pub info: Info,
    /// The final ledgers of its feeds.
    pub ledgers: Vec<Ledger>,
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
        let (changes, requests) = channel();
        let shared = Arc::new(Shared::default());
        let (stop, theirs) = (Arc::clone(&self.stop), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("weir-source".into())
            .spawn(move || {
                work(opener, &tell_opened, &wait, &tell_started, &theirs, &stop, &requests)
            })
            .map_err(CaptureError::os("starting a thread"))?;
        let opened = opened.recv().expect("a source thread reports before it ends")?;
        let Opened { info, rings, notify_fd, lists } = opened;
        let go = Some(go);
        self.workers.push(Worker {
            info,
            rings,
            notify_fd,
            lists,
            changes,
            go,
            started,
            shared,
            thread,
        });
        Ok(&self.workers[self.workers.len() - 1].info)
    }

    /// What the sources say about themselves, in the order they were opened.
    pub fn infos(&self) -> impl Iterator<Item = &Info> {
        self.workers.iter().map(|worker| &worker.info)
    }

    /// All rings, those of the first source first.
    #[must_use]
    pub fn rings(&self) -> Vec<Ring<Mapping>> {
        self.workers.iter().flat_map(|worker| worker.rings.iter().cloned()).collect()
    }

    /// What changes these sources while they run, if they were set up for it.
    #[must_use]
    pub fn remote(&self) -> Remote {
        let reached = |worker: &Worker| Reached {
            changes: worker.changes.clone(),
            lists: worker.lists.clone(),
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
        let notify_fds =
            self.workers.iter_mut().filter_map(|worker| worker.notify_fd.take()).collect();
        let rings = self.workers.iter().map(|worker| worker.rings.len()).sum();
        let sleeper = Sleeper::new(rings, notify_fds)?;
        let mut first = 0;
        for worker in &mut self.workers {
            let waker = sleeper.waker()?;
            if let Some(go) = worker.go.take() {
                // A thread that is gone has said why already, or panicked: `started` tells.
                let _ = go.send(Some((waker, first)));
            }
            first += worker.rings.len();
        }
        for worker in &mut self.workers {
            worker.info = worker.started.recv().expect("a source thread says how it started")?;
        }
        Ok(sleeper)
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
    rings: Vec<Ring<Mapping>>,
    notify_fd: Option<OwnedFd>,
    lists: Option<BlockLists>,
}

/// The life of a source's thread. Whoever ends the session early drops the senders, and each `recv`
/// here then fails: the source is dropped, which undoes what it attached.
fn work(
    opener: Opener,
    tell_opened: &Sender<Result<Opened, CaptureError>>,
    wait: &Receiver<Option<(Waker, usize)>>,
    tell_started: &Sender<Result<Info, CaptureError>>,
    shared: &Shared,
    stop: &AtomicBool,
    requests: &Receiver<Request>,
) -> Outcome {
    let nothing = || Outcome { info: Info::default(), ledgers: Vec::new(), error: None };
    let opened = opener().map_err(xdp_owner::with_owner).and_then(|source| {
        let notify_fd = match source.notify_fd() {
            Some(fd) => {
                Some(fd.try_clone_to_owned().map_err(CaptureError::os("duplicating an eventfd"))?)
            }
            None => None,
        };
        let (info, rings) = (source.info().clone(), source.rings().to_vec());
        let opened = Opened { info, rings, notify_fd, lists: source.lists() };
        Ok((source, opened))
    });
    let mut source = match opened {
        Ok((source, opened)) => {
            let _ = tell_opened.send(Ok(opened));
            source
        }
        Err(error) => {
            let _ = tell_opened.send(Err(error));
            return nothing();
        }
    };
    let Ok(Some((waker, first))) = wait.recv() else { return nothing() };
    if let Err(error) = source.add_waker(waker, first).and_then(|()| source.start()) {
        let _ = tell_started.send(Err(xdp_owner::with_owner(error)));
        return nothing();
    }
    let _ = tell_started.send(Ok(source.info().clone()));
    let error = pump(source.as_mut(), shared, stop, requests);
    if let Some(error) = &error {
        let mut failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        *failure = Some(with_causes(error));
    }
    shared.ended.store(true, Ordering::Release);
    let (ledgers, stop_error) = match source.stop().and_then(|_| source.ledgers()) {
        // Others may go on for long: their totals have its last frames, too.
        Ok(ledgers) => {
            lock(&shared.ledgers).clone_from(&ledgers);
            (ledgers, None)
        }
        Err(error) => (lock(&shared.ledgers).clone(), Some(error)),
    };
    Outcome { info: source.info().clone(), ledgers, error: error.or(stop_error) }
}

fn pump(
    source: &mut dyn Source,
    shared: &Shared,
    stop: &AtomicBool,
    requests: &Receiver<Request>,
) -> Option<CaptureError> {
    let mut asked: Option<Instant> = None;
    while !stop.load(Ordering::Acquire) {
        for Request { feed, change, done } in requests.try_iter() {
            // Who asked may be gone.
            let _ = done.send(source.change(feed, change));
            asked = Some(Instant::now());
        }
        // A change seldom comes alone.
        let is_asked = asked.is_some_and(|at| at.elapsed() < PUMP_LIMIT);
        match source.pump(if is_asked { PUMP_LIMIT_ASKED } else { PUMP_LIMIT }) {
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
fn lock(ledgers: &Mutex<Vec<Ledger>>) -> MutexGuard<'_, Vec<Ledger>> {
    ledgers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use weir_filter::block::Entry;
    use weir_frame::record::Meta;
    use weir_ring::Clock;

    use super::*;
    use crate::feed::Feed;
    use crate::feed::fanout::{Fanout, Feeds};
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

        fn rings(&self) -> &[Ring<Mapping>] {
            self.feeds.rings()
        }

        fn add_waker(&mut self, _: Waker, _: usize) -> Result<(), CaptureError> {
            Ok(())
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

        fn ledgers(&mut self) -> Result<Vec<Ledger>, CaptureError> {
            Ok(self.feeds.ledgers(&Ledger { offered: 2, ..Ledger::default() }))
        }

        fn lists(&self) -> Option<BlockLists> {
            self.feeds.lists()
        }

        fn change(&mut self, feed: usize, change: Change) -> Result<(), CaptureError> {
            self.feeds.change(feed, change, &mut self.info.homes[feed])
        }

        fn stop(&mut self) -> Result<Ledger, CaptureError> {
            self.fanout.close();
            self.ledger()
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
                let (feeds, fanout) = Feeds::create_one(&setup, Clock::Realtime)?;
                let info = Info { homes: fanout.homes(), ..Info::default() };
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
