//! The world of a run: the probe's core with the bookkeeping of its runtime, sources, consumers, callers, and the
//! expected state of all of them.
//!
//! | part | contents |
//! |---|---|
//! | `commands` | the requests of callers |
//! | `effects` | the execution of the core's effects, as in the probe's runtime |
//! | `outputs` | the outputs of the core, compared with the known state |
//! | `offer` | frames that are offered to sources |
//! | `reading` | turns of the consumers |
//! | `settle` | completion of all effects; checks that the state is as the callers requested |

mod commands;
mod effects;
mod offer;
mod outputs;
mod reading;
mod settle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use weir_capture::{FeedControl, Source};
use weir_probe::core::{Command, CommandId, Core, Effect, EffectId};
use weir_probe::runtime::registry::Registry;
use weir_probe::{ConsumerId, FeedId, SourceId, SubscriptionId};
use weir_ring::{Mapping, Ring};

use crate::event::Event;
use crate::fake_source::Script;
use crate::frame::Frame;
use crate::hostile::Hostile;
use crate::meaning::Wanting;
use crate::planted::Planted;
use crate::random::{Random, pick};
use crate::reader::{FeedMessage, Kind, Reader};
use crate::truth::FeedTruth;

/// The reason for a failure.
type Fault = &'static str;

/// Time at which a run begins.
const BEGIN_NS: u64 = 1_700_000_000_000_000_000;

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames offered to sources.
    pub offered: u64,
    /// Frames in rings.
    pub captured: u64,
    /// Frames delivered to consumers, including those that full disks refused.
    pub delivered: u64,
    /// Frames that consumers did not get, because they were overtaken.
    pub lapped: u64,
    /// Frames that full disks refused.
    pub refused: u64,
    /// Number of feeds.
    pub feeds: u64,
    /// Number of times that a source was opened.
    pub lives: u64,
    /// Number of rings with arbitrary words.
    pub hostile: u64,
    /// Number of these rings that a reader refused.
    pub refused_rings: u64,
}

/// A source that is open.
struct OpenSource {
    source: Box<dyn Source>,
    control: Arc<dyn FeedControl>,
    script: Script,
    is_started: bool,
    /// Frames that were offered to the source, including those that it lost.
    offered: u64,
}

/// A subscription, as its caller knows it.
struct Subscription {
    source: SourceId,
    wants: Wanting,
    consumers: BTreeSet<ConsumerId>,
}

/// The callers: their pending commands, and their knowledge.
#[derive(Default)]
struct Callers {
    asked: BTreeMap<CommandId, Command<Wanting>>,
    sources: BTreeSet<SourceId>,
    follows: BTreeSet<SourceId>,
    gone_sources: BTreeSet<SourceId>,
    subscriptions: BTreeMap<SubscriptionId, Subscription>,
    consumers: BTreeSet<ConsumerId>,
    gone_consumers: BTreeSet<ConsumerId>,
    /// Feeds that consumers read, according to the outputs of the core.
    reads: BTreeSet<(ConsumerId, FeedId)>,
    /// The feed of each subscription, and for each feed the feeds to which subscriptions have moved from it.
    feed_of: BTreeMap<SubscriptionId, FeedId>,
    moved: BTreeMap<FeedId, BTreeSet<(SubscriptionId, FeedId)>>,
    /// Feeds whose memory each consumer was ever given.
    seen: BTreeMap<ConsumerId, BTreeSet<FeedId>>,
}

/// The world of a run.
pub struct World {
    step: usize,
    planted: Option<Planted>,
    /// Whether nothing fails any more.
    is_calm: bool,
    clock_ns: u64,
    frames: Vec<Frame>,
    truths: BTreeMap<FeedId, FeedTruth>,
    core: Core<Wanting, Fault>,
    registry: Registry,
    open: BTreeMap<SourceId, OpenSource>,
    under_way: BTreeMap<EffectId, Effect<Wanting>>,
    /// All rings that ever existed.
    rings: Vec<(FeedId, Weak<Mapping>)>,
    /// Rings that a planted bug keeps.
    kept_rings: Vec<Ring<Mapping>>,
    readers: BTreeMap<ConsumerId, Reader>,
    next_kind: Kind,
    /// Messages that were sent to consumers and that the consumers have not taken.
    untaken: BTreeMap<ConsumerId, VecDeque<FeedMessage>>,
    wakers: BTreeSet<(ConsumerId, FeedId)>,
    /// Consumers that could not be attached to feeds that they should read.
    refused: BTreeSet<(ConsumerId, FeedId)>,
    /// Sources that went down since their opening began, and sources that the core reported as down.
    down: BTreeSet<SourceId>,
    told_down: BTreeSet<SourceId>,
    /// Feeds whose ledgers were reported.
    closed: BTreeSet<FeedId>,
    callers: Callers,
    hostile: Hostile,
    counts: Counts,
}

impl World {
    /// Creates an empty world.
    #[must_use]
    pub fn new(planted: Option<Planted>) -> World {
        World {
            step: 0,
            planted,
            is_calm: false,
            clock_ns: BEGIN_NS,
            frames: Vec::new(),
            truths: BTreeMap::new(),
            core: Core::new(),
            registry: Registry::default(),
            open: BTreeMap::new(),
            under_way: BTreeMap::new(),
            rings: Vec::new(),
            kept_rings: Vec::new(),
            readers: BTreeMap::new(),
            next_kind: Kind::Counts,
            untaken: BTreeMap::new(),
            wakers: BTreeSet::new(),
            refused: BTreeSet::new(),
            down: BTreeSet::new(),
            told_down: BTreeSet::new(),
            closed: BTreeSet::new(),
            callers: Callers::default(),
            hostile: Hostile::default(),
            counts: Counts::default(),
        }
    }

    /// Plays an event.
    pub fn play(&mut self, event: &Event) {
        self.step += 1;
        match *event {
            Event::Open { .. }
            | Event::Start(_)
            | Event::Close(_)
            | Event::Subscribe(..)
            | Event::Unsubscribe(_)
            | Event::Change(..)
            | Event::AddConsumer(_)
            | Event::RemoveConsumer(_)
            | Event::Withdraw(_)
            | Event::Attach(..)
            | Event::Detach(..)
            | Event::Ledgers => self.command(event),
            Event::CarryOut(which, fails) => {
                if let Some(id) = pick(which, self.under_way.keys().copied()) {
                    self.carry_out_one(id, fails && !self.is_calm, which & 8 == 0);
                }
            }
            Event::Settle(seed) => self.settle(&mut Random::new(seed)),
            Event::Note(source, kind) => self.note(source, kind),
            Event::Frames { source, count, seed } => self.frames(source, count, seed),
            Event::Burst(source, count) => self.burst(source, count),
            Event::Clock(by_ns) => self.clock_ns = self.clock_ns.saturating_add_signed(by_ns),
            Event::Turn(reader, frames_max) => {
                if let Some(id) = pick(reader, self.readers.keys().copied()) {
                    self.turn(id, frames_max);
                }
            }
            Event::Stall(reader) => {
                if let Some(reader) = pick(reader, self.readers.values_mut()) {
                    reader.is_stalled = !reader.is_stalled;
                }
            }
            Event::Kill(reader) => {
                // The probe does not notice this: its side of the consumer stays until a caller removes it.
                if let Some(id) = pick(reader, self.readers.keys().copied()) {
                    self.reader_gone(id);
                }
            }
            Event::DiskFull(reader, frames) => {
                if let Some(reader) = pick(reader, self.readers.values()) {
                    reader.refuse(frames);
                }
            }
            Event::Hostile(seed) => self.hostile.attack(seed),
        }
    }
}
