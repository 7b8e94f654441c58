//! The running probe: the core behind a lock, threads for the sources, and callers that carry out effects.
//!
//! An effect is carried out by the thread that gave a command, while it waits for the answer, or by the housekeeper, a
//! thread with no other work. So a thread that moves frames or is woken by frames never creates rings or loads
//! programs.

pub mod channels;
mod consumer;
mod effects;
mod interfaces;
mod links;
pub mod registry;
mod remote;
mod source_thread;
pub mod updates;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use weir_capture::kernel::netns::NetnsName;
use weir_capture::{CaptureError, Change, Feed, FilterLocation, Info, Source};
use weir_ring::{Ledger, Mapping, Ring};

pub use consumer::Consumer;
use links::LinkWatches;
use registry::Registry;
pub use remote::RemoteConsumer;
use source_thread::{Panic, SourceThread};
pub use updates::{Joined, Update};

use crate::core::{
    Command, CommandId, ConsumerId, Core, Effect, EffectId, Event, FeedId, Note, Refused, Reply,
    SourceId, SubscriptionId,
};
use crate::cpus::CpuList;
use crate::error::ProbeError;
use crate::wants::Wants;

/// Opens a source with these feeds. It is called on the source's own thread, which may enter a network namespace, and
/// again each time a followed interface comes back.
pub type Opener = Arc<dyn Fn(Vec<Feed>) -> Result<Box<dyn Source>, CaptureError> + Send + Sync>;

/// A source to open.
#[derive(Clone)]
pub struct SourceSpec {
    /// The source's name, as the user wrote it.
    pub name: String,
    /// Opens the source.
    pub open: Opener,
    /// The interface of the source, if it has one. Its state (up or down) is reported then.
    pub link: Option<LinkName>,
    /// Whether to wait for an interface that is missing or vanishes.
    pub follows: bool,
    /// The CPUs for its threads; `None`: any CPU.
    pub cpus: Option<CpuList>,
}

impl SourceSpec {
    /// Describes a source without an interface, whose threads may run on any CPU. `open` opens it with its first feeds
    /// ([`Opener`]).
    #[must_use]
    pub fn new(
        name: &str,
        open: impl Fn(Vec<Feed>) -> Result<Box<dyn Source>, CaptureError> + Send + Sync + 'static,
    ) -> SourceSpec {
        let (name, open) = (name.to_owned(), Arc::new(open));
        SourceSpec { name, open, link: None, follows: false, cpus: None }
    }
}

/// An interface by its name, or all interfaces of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkName {
    /// The network namespace; `None`: that of this process.
    pub netns: Option<NetnsName>,
    /// The name of the interface; `None`: all interfaces, for a network namespace that is followed as a whole.
    pub iface: Option<String>,
}

/// An event of the probe.
pub type ProbeEvent = Event<CaptureError>;

/// Sources, feeds and consumers of one process. Any thread may give commands; each call waits until its command is
/// carried out. Dropping this value stops the probe.
pub struct Probe {
    shared: Arc<Shared>,
    housekeeper: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when work or an answer has come.
    changed: Condvar,
    /// Held while a network namespace begins to be watched. Lock order: before `state`.
    watching: Mutex<()>,
}

struct State {
    core: Core<Wants, CaptureError>,
    work: VecDeque<(EffectId, Effect<Wants>)>,
    awaited: BTreeSet<CommandId>,
    replies: BTreeMap<CommandId, Result<Reply, Refused<CaptureError>>>,
    specs: BTreeMap<SourceId, Arc<SourceSpec>>,
    threads: BTreeMap<SourceId, SourceThread>,
    registry: Registry,
    /// Facts about each source; for a source that has ended, facts of its last life.
    infos: BTreeMap<SourceId, Info>,
    listener: Box<dyn FnMut(ProbeEvent) + Send>,
    links: LinkWatches,
    panic: Panic,
    /// Consumers were told that no further updates come.
    is_stopped: bool,
    is_over: bool,
}

impl Probe {
    /// Creates a probe without sources, and the receiver of its events.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn new() -> Result<(Probe, Receiver<ProbeEvent>), ProbeError> {
        let (events, told) = channel();
        // An error means that the caller has dropped the receiver.
        let probe = Probe::with_listener(move |event| _ = events.send(event))?;
        Ok((probe, told))
    }

    /// Like [`new`](Probe::new). `listener` gets the events in order, on the thread that has caused them. The probe is
    /// locked meanwhile, so `listener` must not give commands.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn with_listener(
        listener: impl FnMut(ProbeEvent) + Send + 'static,
    ) -> Result<Probe, ProbeError> {
        let state = State {
            core: Core::new(),
            work: VecDeque::new(),
            awaited: BTreeSet::new(),
            replies: BTreeMap::new(),
            specs: BTreeMap::new(),
            threads: BTreeMap::new(),
            registry: Registry::default(),
            infos: BTreeMap::new(),
            listener: Box::new(listener),
            links: LinkWatches::default(),
            panic: None,
            is_stopped: false,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
            watching: Mutex::new(()),
        });
        let housekeeper = std::thread::Builder::new()
            .name("weir-probe".into())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.keep_house()
            })
            .map_err(|source| CaptureError::Os { doing: "starting a thread".into(), source })?;
        Ok(Probe { shared, housekeeper: Some(housekeeper) })
    }

    /// Opens a source with its first feeds, at least one. It offers no frames before [`start`](Probe::start).
    ///
    /// # Errors
    /// The engine's error.
    ///
    /// # Panics
    /// If `wants` is empty.
    pub fn open(
        &self,
        spec: SourceSpec,
        wants: Vec<Wants>,
    ) -> Result<(SourceId, Vec<SubscriptionId>), ProbeError> {
        assert!(!wants.is_empty(), "a source has a feed at least");
        let (follows, spec) = (spec.follows, Arc::new(spec));
        // Before the source is opened, so that changes in between are reported.
        let watched = spec.link.as_ref().map(|link| links::watch(&self.shared, link)).transpose();
        let _until_it_is_known =
            watched.or_else(|error| if follows { Err(error) } else { Ok(None) })?;
        match self.shared.ask(Command::Open { wants, follows }, Some(Arc::clone(&spec)))? {
            Reply::Opened(source, own) => Ok((source, own)),
            other => unreachable!("{other:?}"),
        }
    }

    /// Makes a source offer frames.
    ///
    /// # Errors
    /// The engine's error; the source has ended then.
    pub fn start(&self, source: SourceId) -> Result<(), ProbeError> {
        self.done(Command::Start(source))
    }

    /// Ends a source. Events report its ledgers before this returns.
    ///
    /// # Errors
    /// [`ProbeError::Unknown`] if it has ended.
    pub fn close(&self, source: SourceId) -> Result<(), ProbeError> {
        self.done(Command::Close(source))
    }

    /// Looks now for the interface of a source that is waited for. For a caller that learns of it in another way than
    /// from the network namespace, such as from the start of a container.
    pub fn look_again(&self, source: SourceId) {
        self.shared.note(source, Note::Appeared);
    }

    /// Adds a subscriber to a source.
    ///
    /// # Errors
    /// The engine's error when it adds a feed.
    pub fn subscribe(&self, source: SourceId, wants: Wants) -> Result<SubscriptionId, ProbeError> {
        match self.shared.ask(Command::Subscribe { source, wants }, None)? {
            Reply::Subscribed(subscription) => Ok(subscription),
            other => unreachable!("{other:?}"),
        }
    }

    /// Ends a subscription.
    ///
    /// # Errors
    /// [`ProbeError::Unknown`] if it has ended.
    pub fn unsubscribe(&self, subscription: SubscriptionId) -> Result<(), ProbeError> {
        self.done(Command::Unsubscribe(subscription))
    }

    /// Changes the filter or the block list of a subscription. Other subscriptions that share its feed are not
    /// affected.
    ///
    /// # Errors
    /// The engine's error; nothing has changed then.
    pub fn change(&self, subscription: SubscriptionId, change: Change) -> Result<(), ProbeError> {
        self.done(Command::Change(subscription, change))
    }

    /// Makes a consumer read a subscription.
    ///
    /// # Errors
    /// [`ProbeError::Unknown`], or no descriptors or lines of the wake page are left.
    pub fn attach(
        &self,
        consumer: ConsumerId,
        subscription: SubscriptionId,
    ) -> Result<(), ProbeError> {
        self.done(Command::Attach(consumer, subscription))
    }

    /// Ends the reading that [`attach`](Probe::attach) has begun.
    ///
    /// # Errors
    /// [`ProbeError::Unknown`].
    pub fn detach(
        &self,
        consumer: ConsumerId,
        subscription: SubscriptionId,
    ) -> Result<(), ProbeError> {
        self.done(Command::Detach(consumer, subscription))
    }

    /// Ends a consumer that must not see further frames: the rings that it has mapped get no more frames, and the other
    /// consumers move to new rings.
    ///
    /// # Errors
    /// [`ProbeError::Unknown`].
    pub fn withdraw(&self, consumer: ConsumerId) -> Result<(), ProbeError> {
        self.done(Command::Withdraw(consumer))?;
        self.shared.lock().registry.withdrawn(consumer);
        Ok(())
    }

    /// Returns the ledgers so far of the current feeds. While frames come, their counts are not of the same moment.
    /// Waits for sources that are being opened or hang.
    ///
    /// # Errors
    /// [`ProbeError::Stopped`].
    pub fn ledgers(&self) -> Result<Vec<(FeedId, Ledger)>, ProbeError> {
        let sources = self.shared.lock().core.sources().collect();
        self.ledgers_of(sources)
    }

    /// Like [`ledgers`](Probe::ledgers), for these sources. Does not wait for others.
    ///
    /// # Errors
    /// [`ProbeError::Stopped`].
    pub fn ledgers_of(
        &self,
        sources: BTreeSet<SourceId>,
    ) -> Result<Vec<(FeedId, Ledger)>, ProbeError> {
        match self.shared.ask(Command::Ledgers(sources), None)? {
            Reply::Ledgers(ledgers) => Ok(ledgers),
            other => unreachable!("{other:?}"),
        }
    }

    /// Returns the feed that a subscription reads now, and the place where its frames are filtered.
    #[must_use]
    pub fn feed_of(&self, subscription: SubscriptionId) -> Option<(FeedId, FilterLocation)> {
        let state = self.shared.lock();
        let feed = state.core.feed_of(subscription)?;
        Some((feed, state.registry.feed(feed)?.location))
    }

    /// Returns the rings that a subscription reads now; none while its source is waited for.
    #[must_use]
    pub fn rings_of(&self, subscription: SubscriptionId) -> Vec<Ring<Mapping>> {
        let state = self.shared.lock();
        let feed = state.core.feed_of(subscription).and_then(|feed| state.registry.feed(feed));
        feed.map(|feed| feed.rings.clone()).unwrap_or_default()
    }

    /// Returns facts about a source; for a source that is waited for or has ended, facts of its last life. `None` if
    /// the source was never open, or has ended before the last [`ENDED_SOURCES_MAX`](crate::limits::ENDED_SOURCES_MAX)
    /// ones.
    #[must_use]
    pub fn info_of(&self, source: SourceId) -> Option<Info> {
        self.shared.lock().infos.get(&source).cloned()
    }

    /// Closes all sources. Events report their ledgers before this returns.
    ///
    /// # Panics
    /// If a source's thread or an effect has panicked: that is a bug in this program, and the panic is passed on.
    pub fn stop(&self) {
        let _ = self.done(Command::Stop);
        let mut state = self.shared.lock();
        state.end_members();
        let panic = state.panic.take();
        drop(state);
        if let Some(panic) = panic {
            std::panic::resume_unwind(panic);
        }
    }

    fn done(&self, command: Command<Wants>) -> Result<(), ProbeError> {
        self.shared.ask(command, None).map(drop)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.done(Command::Stop);
        let mut state = self.shared.lock();
        state.end_members();
        state.is_over = true;
        drop(state);
        self.shared.changed.notify_all();
        if let Some(housekeeper) = self.housekeeper.take() {
            let _ = housekeeper.join();
        }
    }
}
