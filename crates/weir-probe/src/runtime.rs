//! The running probe: the core behind a lock, threads for the sources, and callers that carry out effects.
//!
//! An effect is carried out by the thread that gave a command, while it waits for the answer, or by the housekeeper,
//! a thread that has nothing else to do. So rings are made and programs loaded on no thread that moves frames or is
//! woken by them.

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

/// Opens a source with these feeds. Runs on the source's own thread, which may enter a network namespace; is called
/// again each time an interface that is followed comes back.
pub type Opener = Arc<dyn Fn(Vec<Feed>) -> Result<Box<dyn Source>, CaptureError> + Send + Sync>;

/// A source to open.
#[derive(Clone)]
pub struct SourceSpec {
    /// As the user named it.
    pub name: String,
    /// Opens it.
    pub open: Opener,
    /// Its interface, if it has one: whether that is up is told then.
    pub link: Option<LinkName>,
    /// Waits for the interface where it is missing or vanishes.
    pub follows: bool,
    /// Where its threads run; `None`: anywhere.
    pub cpus: Option<CpuList>,
}

impl SourceSpec {
    /// A source without an interface, whose threads run anywhere. `open` opens it with its first feeds ([`Opener`]).
    #[must_use]
    pub fn new(
        name: &str,
        open: impl Fn(Vec<Feed>) -> Result<Box<dyn Source>, CaptureError> + Send + Sync + 'static,
    ) -> SourceSpec {
        let (name, open) = (name.to_owned(), Arc::new(open));
        SourceSpec { name, open, link: None, follows: false, cpus: None }
    }
}

/// An interface by name, or those of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkName {
    /// The network namespace; `None`: that of the process.
    pub netns: Option<NetnsName>,
    /// Its name there; `None`: whichever interfaces a namespace has that is followed as a whole.
    pub iface: Option<String>,
}

/// Unsolicited messages of the probe.
pub type ProbeEvent = Event<CaptureError>;

/// Sources, feeds and consumers of one process. Commands come from any thread, and wait until they are carried out.
/// Dropping it stops all.
pub struct Probe {
    shared: Arc<Shared>,
    housekeeper: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Work has come, or an answer.
    changed: Condvar,
    /// Is held while a network namespace begins to be watched; before `state`.
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
    /// Facts about each source; for a source that has ended, those of its last life.
    infos: BTreeMap<SourceId, Info>,
    listener: Box<dyn FnMut(ProbeEvent) + Send>,
    links: LinkWatches,
    panic: Panic,
    /// Consumers were told that nothing more comes.
    is_stopped: bool,
    is_over: bool,
}

impl Probe {
    /// A probe without sources, and its unsolicited events.
    ///
    /// # Errors
    /// If there is no thread left.
    pub fn new() -> Result<(Probe, Receiver<ProbeEvent>), ProbeError> {
        let (events, told) = channel();
        // Nobody has to listen.
        let probe = Probe::with_listener(move |event| _ = events.send(event))?;
        Ok((probe, told))
    }

    /// The same; `listener` hears what happens, in order, on whichever thread carries it out. It holds up the probe
    /// meanwhile, and must give no command.
    ///
    /// # Errors
    /// If there is no thread left.
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

    /// Opens a source with its first feeds, at least one; it offers nothing before [`start`](Probe::start).
    ///
    /// # Errors
    /// Its engine's error.
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
        // Before it is opened: changes in between are reported.
        let watched = spec.link.as_ref().map(|link| links::watch(&self.shared, link)).transpose();
        let _until_it_is_known =
            watched.or_else(|error| if follows { Err(error) } else { Ok(None) })?;
        match self.shared.ask(Command::Open { wants, follows }, Some(Arc::clone(&spec)))? {
            Reply::Opened(source, own) => Ok((source, own)),
            other => unreachable!("{other:?}"),
        }
    }

    /// Lets a source offer frames.
    ///
    /// # Errors
    /// Its engine's error; the source has ended then.
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

    /// Looks for the interface of a source that is waited for, now: for who hears of it in another way than from its
    /// network namespace, such as a container that has been started.
    pub fn look_again(&self, source: SourceId) {
        self.shared.note(source, Note::Appeared);
    }

    /// Adds a subscriber to a source.
    ///
    /// # Errors
    /// The engine's error of one more feed.
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

    /// Changes the filter or the block list of a subscription. Others that share its feed are not concerned.
    ///
    /// # Errors
    /// The engine's error; nothing has changed then.
    pub fn change(&self, subscription: SubscriptionId, change: Change) -> Result<(), ProbeError> {
        self.done(Command::Change(subscription, change))
    }

    /// Lets a consumer read a subscription.
    ///
    /// # Errors
    /// [`ProbeError::Unknown`], or no descriptors or lines are left.
    pub fn attach(
        &self,
        consumer: ConsumerId,
        subscription: SubscriptionId,
    ) -> Result<(), ProbeError> {
        self.done(Command::Attach(consumer, subscription))
    }

    /// Ends that.
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

    /// Ends a consumer that must not see another frame: its mapped memory gets none, and the others move to fresh
    /// rings.
    ///
    /// # Errors
    /// [`ProbeError::Unknown`].
    pub fn withdraw(&self, consumer: ConsumerId) -> Result<(), ProbeError> {
        self.done(Command::Withdraw(consumer))?;
        self.shared.lock().registry.withdrawn(consumer);
        Ok(())
    }

    /// The ledgers so far of the feeds that there are. While frames come, their counts are not of one instant. A source
    /// that is being opened, or hangs, is waited for.
    ///
    /// # Errors
    /// [`ProbeError::Stopped`].
    pub fn ledgers(&self) -> Result<Vec<(FeedId, Ledger)>, ProbeError> {
        let sources = self.shared.lock().core.sources().collect();
        self.ledgers_of(sources)
    }

    /// The same of some sources, and no other is waited for.
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

    /// The feed that a subscription reads now, and where its frames are chosen.
    #[must_use]
    pub fn feed_of(&self, subscription: SubscriptionId) -> Option<(FeedId, FilterLocation)> {
        let state = self.shared.lock();
        let feed = state.core.feed_of(subscription)?;
        Some((feed, state.registry.feed(feed)?.location))
    }

    /// The rings that a subscription reads now; none while its source is waited for.
    #[must_use]
    pub fn rings_of(&self, subscription: SubscriptionId) -> Vec<Ring<Mapping>> {
        let state = self.shared.lock();
        let feed = state.core.feed_of(subscription).and_then(|feed| state.registry.feed(feed));
        feed.map(|feed| feed.rings.clone()).unwrap_or_default()
    }

    /// Facts about a source; for a source that is waited for or has ended, those of its last life. `None` if it was
    /// never open, or so many have ended since that it is forgotten
    /// ([`ENDED_SOURCES_MAX`](crate::limits::ENDED_SOURCES_MAX)).
    #[must_use]
    pub fn info_of(&self, source: SourceId) -> Option<Info> {
        self.shared.lock().infos.get(&source).cloned()
    }

    /// Closes all sources. Events report their ledgers before this returns.
    ///
    /// # Panics
    /// If a source's thread or an effect panicked: a bug of ours, passed on.
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
