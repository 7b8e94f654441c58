//! A source's own thread: it opens the source in the right network namespace and on the right CPUs, moves its frames,
//! and stops it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_capture::kernel::netns::NetnsId;
use weir_capture::kernel::xdp_owner::with_owner;
use weir_capture::{CaptureError, Feed, Info, Pumped, Source};
use weir_capture::{FeedControl, FeedHandle};

use super::SourceSpec;
use crate::core::Note;

/// Longest time that a source works before its thread checks the stop flag. Closing the source waits for that.
const PUMP_LIMIT: Duration = Duration::from_millis(20);
/// The same limit for a source that can be woken.
const WOKEN_PUMP_LIMIT: Duration = Duration::from_secs(1);

/// An open source, and its thread.
pub(super) struct SourceThread {
    pub(super) control: Arc<dyn FeedControl>,
    /// The network namespace in which the source is open; `None` if it is not known.
    pub(super) netns: Option<NetnsId>,
    stop: Arc<AtomicBool>,
    go: Sender<()>,
    started: Receiver<Result<Info, CaptureError>>,
    stopped: Receiver<Stopped>,
    /// Dropped after the ledgers were read: only then is the source dropped.
    release: Sender<()>,
    thread: JoinHandle<()>,
}

/// The facts about a source when it has stopped, and the result of stopping it.
type Stopped = (Info, Result<(), CaptureError>);

/// The parts of a source that was opened.
type Opened = (Info, Vec<FeedHandle>, Arc<dyn FeedControl>, Option<NetnsId>);

/// The thread's ends of the channels.
struct Ends {
    opened: Sender<Result<Opened, CaptureError>>,
    go: Receiver<()>,
    started: Sender<Result<Info, CaptureError>>,
    stopped: Sender<Stopped>,
    release: Receiver<()>,
    stop: Arc<AtomicBool>,
}

impl SourceThread {
    /// Opens a source with these feeds on its own thread. `note` gets events that no command has caused.
    pub(super) fn open(
        spec: &Arc<SourceSpec>,
        feeds: Vec<Feed>,
        note: impl Fn(Note<CaptureError>) + Send + 'static,
    ) -> Result<(SourceThread, Info, Vec<FeedHandle>), CaptureError> {
        let ((opened, is_open), (go, goes)) = (channel(), channel());
        let ((started, is_started), (stopped, is_stopped)) = (channel(), channel());
        let (release, released) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let ends =
            Ends { opened, go: goes, started, stopped, release: released, stop: Arc::clone(&stop) };
        let spec = Arc::clone(spec);
        let thread = std::thread::Builder::new()
            .name("weir-source".into())
            .spawn(move || work(&spec, feeds, &ends, note))
            .map_err(|source| CaptureError::Os { doing: "starting a thread".into(), source })?;
        let Ok(opened) = is_open.recv() else {
            let panic = thread.join().expect_err("a thread that does not report has panicked");
            std::panic::resume_unwind(panic);
        };
        let (info, handles, control, netns) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let _ = thread.join();
                return Err(error);
            }
        };
        let own = SourceThread {
            control,
            netns,
            stop,
            go,
            started: is_started,
            stopped: is_stopped,
            release,
            thread,
        };
        Ok((own, info, handles))
    }

    /// Makes the source offer frames. Returns the facts about it, which may have changed.
    pub(super) fn start(&self) -> Result<Info, CaptureError> {
        // An error means that the thread has panicked.
        let _ = self.go.send(());
        self.started.recv().map_err(|_| CaptureError::Ended)?
    }

    /// Stops the source. `read` reads its ledgers before it is dropped. Also returns the panic of its thread, if it has
    /// panicked.
    pub(super) fn close<T>(
        self,
        read: impl FnOnce(Option<Info>, Result<(), CaptureError>) -> T,
    ) -> (T, Panic) {
        let SourceThread { stop, go, stopped, release, thread, control, .. } = self;
        stop.store(true, Ordering::Release);
        control.wake();
        drop(go);
        let ledgers = match stopped.recv() {
            Ok((info, stopped)) => read(Some(info), stopped),
            Err(_) => read(None, Err(CaptureError::Ended)),
        };
        drop(release);
        (ledgers, thread.join().err())
    }
}

/// The payload of a thread's panic.
pub(super) type Panic = Option<Box<dyn std::any::Any + Send>>;

/// Reports that the source has ended if its thread panics.
struct Ending<N: Fn(Note<CaptureError>)>(N);

impl<N: Fn(Note<CaptureError>)> Drop for Ending<N> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(Note::Ended);
        }
    }
}

fn work(
    spec: &SourceSpec,
    feeds: Vec<Feed>,
    ends: &Ends,
    note: impl Fn(Note<CaptureError>) + Send,
) {
    let ending = Ending(note);
    let mut source = match open(spec, feeds).map_err(with_owner) {
        Ok(source) => source,
        Err(error) => {
            let _ = ends.opened.send(Err(error));
            return;
        }
    };
    let control = source.control();
    // The engine may have moved this thread into the network namespace of the interface.
    let netns = NetnsId::current();
    let opened = (source.info().clone(), control.feeds(), control, netns);
    let _ = ends.opened.send(Ok(opened));
    // The source is closed before it was started.
    if ends.go.recv().is_err() {
        let _ = ends.stopped.send((source.info().clone(), Ok(())));
        let _ = ends.release.recv();
        return;
    }
    match source.start() {
        Ok(()) => {
            let _ = ends.started.send(Ok(source.info().clone()));
            if let Some(end) = pump(source.as_mut(), &ends.stop, &ending.0) {
                (ending.0)(end);
            }
        }
        Err(error) => {
            let _ = ends.started.send(Err(with_owner(error)));
        }
    }
    let stopped = source.stop();
    let _ = ends.stopped.send((source.info().clone(), stopped));
    let _ = ends.release.recv();
}

fn open(spec: &SourceSpec, feeds: Vec<Feed>) -> Result<Box<dyn Source>, CaptureError> {
    if let Some(cpus) = &spec.cpus {
        let doing = || format!("{}: keeping its thread on the CPUs {cpus}", spec.name);
        cpus.apply().map_err(|source| CaptureError::Os { doing: doing(), source })?;
    }
    (spec.open)(feeds)
}

/// Moves frames until it is told to stop. If the source ends by itself, returns the note about that.
fn pump(
    source: &mut dyn Source,
    stop: &AtomicBool,
    note: &impl Fn(Note<CaptureError>),
) -> Option<Note<CaptureError>> {
    let limit = if source.can_be_woken() { WOKEN_PUMP_LIMIT } else { PUMP_LIMIT };
    while !stop.load(Ordering::Acquire) {
        let pumped = source.pump(limit);
        source.take_events().into_iter().for_each(|event| note(Note::Interface(event)));
        match pumped {
            Ok(Pumped::More) => {}
            Ok(Pumped::Ended) => return Some(Note::Ended),
            Err(error @ (CaptureError::Vanished { .. } | CaptureError::FeedEnded { .. })) => {
                return Some(Note::Vanished(error));
            }
            Err(error) => return Some(Note::Failed(error)),
        }
    }
    None
}
