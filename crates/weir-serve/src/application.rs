//! The methods of the application `capture`, and the cleanup when a client disconnects.

mod guest;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_capture::error::error_text;
use weir_capture::{Change, engines};
use weir_client::protocol::{
    self, APPLICATION, Attach, Block, BlockNamed, BlockedNamed, Detach, OfFeed, Open, Opened, Part,
    SHARED, SetFilter, Source, Statistics,
};
use weir_plug::message::{BUSY, RpcError};
use weir_plug::{Answer, Application, Peer, Session, Who};
use weir_probe::ProbeError;
use weir_ring::wake::{RINGS_MAX, Waker};
use weir_ring::{Mapping, Ring};

use crate::blocking::read_change;
use crate::config::SourceConfig;
use crate::daemon::Daemon;
use crate::reader::{Opening, Reader};
use crate::refusal::{no_source, refused};
use crate::rights;
use crate::slots::Claim;
use crate::user::User;

const METHODS: [&str; 16] = [
    "sources",
    "open",
    "attach",
    "detach",
    "set_filter",
    "block",
    "block_named",
    "blocked_named",
    "ledger",
    "statistics",
    "close",
    "let_go",
    "status",
    "guests",
    "guest_detach",
    "guest_attach",
];

/// The application `capture`.
pub struct Capture(Arc<Daemon>);

impl Capture {
    /// Creates the application for the daemon's sources.
    #[must_use]
    pub fn new(daemon: Arc<Daemon>) -> Capture {
        Capture(daemon)
    }
}

impl Application for Capture {
    fn name(&self) -> &str {
        APPLICATION
    }

    fn connect(&self, peer: &Arc<Peer>) -> Result<Box<dyn Session>, RpcError> {
        let who = peer.who().clone();
        if let Who::Guest(name) = &who
            && let Some(guest) = self.0.guests.get(name)
        {
            guest.session.set_peer(peer);
        }
        let (daemon, peer) = (Arc::clone(&self.0), Arc::clone(peer));
        Ok(Box::new(Client { daemon, peer, who, feeds: BTreeMap::new() }))
    }
}

/// A client and its feeds.
struct Client {
    daemon: Arc<Daemon>,
    peer: Arc<Peer>,
    who: Who,
    feeds: BTreeMap<u64, Arc<Reader>>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let readers: Vec<_> = std::mem::take(&mut self.feeds).into_values().collect();
        self.daemon.let_go_all(&readers);
    }
}

impl Session for Client {
    fn call(&mut self, method: &str, params: Value, fds: Vec<OwnedFd>) -> Result<Answer, RpcError> {
        match method {
            "sources" => self.sources(),
            "open" => self.open(&read(params)?),
            "attach" => self.attach(&read(params)?, fds),
            "detach" => {
                let Detach { feed, sleeper } = read(params)?;
                self.feed(feed)?.remove_sleeper(sleeper);
                done()
            }
            "set_filter" => {
                let SetFilter { feed, filter } = read(params)?;
                self.set_filter(feed, &filter)
            }
            "block" => self.block(&read(params)?),
            "block_named" => self.block_named(&read(params)?),
            "blocked_named" => {
                let BlockedNamed { name } = read(params)?;
                self.blocked_named(&name)
            }
            "ledger" => {
                let OfFeed { feed } = read(params)?;
                let reader = self.feed(feed)?;
                answer(self.statistics_of(std::slice::from_ref(reader))?.remove(0))
            }
            "statistics" => {
                let readers: Vec<_> = self.feeds.values().cloned().collect();
                answer(json!({ "feeds": self.statistics_of(&readers)? }))
            }
            "close" => {
                let OfFeed { feed } = read(params)?;
                answer(self.daemon.close(self.feed(feed)?))
            }
            "let_go" => {
                let OfFeed { feed } = read(params)?;
                if let Some(reader) = self.feeds.remove(&feed) {
                    reader.unmapped();
                    self.daemon.let_go(&reader);
                }
                done()
            }
            "status" => self.status(),
            "guests" => self.guests(),
            "guest_detach" => self.detach_guest(&read(params)?),
            "guest_attach" => self.attach_guest(&read(params)?),
            _ => Err(RpcError::no_method(method, &METHODS)),
        }
    }
}

fn read<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|error| RpcError::params(error.to_string()))
}

fn answer(value: impl serde::Serialize) -> Result<Answer, RpcError> {
    let value =
        serde_json::to_value(value).map_err(|error| RpcError::refused(error.to_string()))?;
    Ok(value.into())
}

#[expect(clippy::unnecessary_wraps, reason = "the answer of a method")]
fn done() -> Result<Answer, RpcError> {
    Ok(json!({}).into())
}

/// Returns the places of the rings in their descriptors; empty if each ring is its whole descriptor.
fn parts(rings: &[Ring<Mapping>]) -> Vec<Part> {
    let part = |ring: &Ring<Mapping>| Part {
        offset: ring.memory().offset(),
        bytes: ring.geometry().total_bytes(),
    };
    let parts: Vec<Part> = rings.iter().map(part).collect();
    if parts.iter().all(|part| part.offset == 0) { Vec::new() } else { parts }
}

impl Client {
    fn user(&self) -> User {
        User::from(&self.who)
    }

    fn feed(&self, number: u64) -> Result<&Arc<Reader>, RpcError> {
        let missing = || RpcError::params(format!("there is no feed {number}"));
        self.feeds.get(&number).ok_or_else(missing)
    }

    fn source(&self, name: &str) -> Result<SourceConfig, RpcError> {
        self.daemon.source(&self.who, name).ok_or_else(|| {
            let is_there = || self.daemon.config().sources.contains_key(name);
            no_source(name, rights::is_root(&self.who) && is_there())
        })
    }

    fn sources(&self) -> Result<Answer, RpcError> {
        let of = |(name, source): (String, SourceConfig)| Source {
            link_type: self.daemon.link_type(&name, &source),
            source: name,
            snaplen: source.snaplen,
        };
        let sources = self.daemon.sources(&self.who).into_iter();
        answer(json!({ "sources": sources.map(of).collect::<Vec<_>>() }))
    }

    fn status(&self) -> Result<Answer, RpcError> {
        let sees_all = rights::manages(&self.who);
        let sources = match sees_all {
            true => self.daemon.config().sources.clone(),
            false => self.daemon.sources(&self.who),
        };
        let is_own = |reader: &Reader| User::from(&reader.who) == self.user();
        if let Who::Guest(name) = &self.who {
            return answer(self.daemon.status_of_guest(&sources, name));
        }
        answer(self.daemon.status_with_reasons(&sources, |reader| sees_all || is_own(reader)))
    }

    fn open(&mut self, open: &Open) -> Result<Answer, RpcError> {
        self.open_feed(open).inspect_err(|error| {
            self.daemon.journal.refused(&self.who, &open.source, &error.message);
        })
    }

    fn open_feed(&mut self, open: &Open) -> Result<Answer, RpcError> {
        let source = self.source(&open.source)?;
        if self.feeds.contains_key(&open.feed) {
            return Err(RpcError::params(format!("feed {} is open already", open.feed)));
        }
        let (user, mib) = (self.user(), source.ring_mib());
        let opening = Box::new(Opening {
            peer: Arc::clone(&self.peer),
            who: self.who.clone(),
            asked: open.clone(),
            number: open.feed,
            source: open.source.clone(),
            filter: source.shown_filter(&open.filter),
            mib,
            copied: rights::copied_for(&self.who),
            key: self.guest().map(|guest| guest.session.next_key()),
        });
        self.daemon.usage.open_again(&user, mib)?;
        let reader = self.daemon.open_moved(opening).or_else(|opening| {
            self.daemon.usage.take_turn(&user)?;
            self.daemon.open(*opening, &source, open)
        });
        let reader = reader.inspect_err(|_| self.daemon.usage.close(&user, mib))?;
        self.feeds.insert(open.feed, Arc::clone(&reader));
        self.opened(&reader).inspect_err(|_| {
            // After this error the client could not close the feed, because it does not know that it is open.
            self.feeds.remove(&open.feed);
            self.daemon.let_go(&reader);
        })
    }

    /// Returns the answer to a client that has opened a feed, with the feed's rings.
    fn opened(&self, reader: &Arc<Reader>) -> Result<Answer, RpcError> {
        let mut info = self.daemon.probe.info_of(reader.claim.source).unwrap_or_default();
        // The rings of other engines are always sealed memory.
        if engines::by_name(info.engine).is_some_and(|engine| engine.fills_bpf_arrays) {
            info.notes.extend(reader.copied.map(|copied| copied.note().to_owned()));
        }
        let broken = |error: weir_ring::RingError| RpcError::refused(error_text(&error));
        let reads = reader.reads();
        let first = reads.rings.first().map(|ring| ring.identity().map_err(broken)).transpose()?;
        let opened = Opened {
            key: reader.key(),
            from: reads.from.clone(),
            link_type: first.map(|identity| identity.link_type).unwrap_or_default(),
            engine: info.engine.to_owned(),
            hook: info.hook.map(str::to_owned),
            why: info.why,
            notes: info.notes,
            owner: info.owner.as_ref().map(protocol::Owner::from),
            parts: parts(&reads.rings),
            region: None,
        };
        if let Who::Guest(_) = &self.who {
            return answer(Opened { region: Some(self.copy(reader)?), from: vec![0], ..opened });
        }
        let rings = reads.rings.iter().map(|ring| ring.memory().as_fd().try_clone_to_owned());
        let descriptors: Result<Vec<OwnedFd>, _> = rings.collect();
        let descriptors = descriptors.map_err(|error| RpcError::refused(error.to_string()))?;
        Ok(Answer { descriptors, ..answer(opened)? })
    }

    fn attach(&self, attach: &Attach, fds: Vec<OwnedFd>) -> Result<Answer, RpcError> {
        let reader = self.feed(attach.feed)?;
        let count = fds.len();
        let [page, socket] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| {
            RpcError::params(format!(
                "{count} descriptors came; a sleeper has 2: wake page and socket"
            ))
        })?;
        let (first, rings) = (attach.first_line, reader.reads().rings.len());
        let end = first.checked_add(rings).filter(|end| *end <= RINGS_MAX).ok_or_else(|| {
            RpcError::params(format!("a wake page has {RINGS_MAX} lines at most"))
        })?;
        let wrong = |error: weir_ring::RingError| RpcError::params(error_text(&error));
        let waker = Waker::attach(page, socket, end).map_err(wrong)?;
        let own = waker.try_clone().map_err(wrong)?;
        reader.add_sleeper(attach.sleeper, first, own, || {
            let probe = &self.daemon.probe;
            let consumer = probe.add_remote_consumer_at(first..end).map_err(refused)?;
            consumer.give_channel(waker).map_err(refused)?;
            match probe.attach(consumer.id, reader.claim.subscription) {
                Ok(()) => Ok(Some(consumer)),
                // The feed has ended. The client is notified of that separately.
                Err(ProbeError::Ended | ProbeError::Unknown) => Ok(None),
                Err(error) => Err(refused(error)),
            }
        })?;
        done()
    }

    /// Changes the filter or the block list of a feed with `change`. The caller ensures that no other client joins the
    /// feed meanwhile. A guest's feed may share rings with others: then the feed moves to its own rings, and the copy
    /// for the guest follows.
    fn change(
        &self,
        number: u64,
        change: impl FnOnce(&Reader) -> Result<(), RpcError>,
    ) -> Result<(), RpcError> {
        let reader = self.feed(number)?;
        if reader.is_closed() {
            return Err(RpcError::params(format!("feed {number} is closed")));
        }
        let feed = reader.feed();
        let is_shared = self.daemon.board.readers_of(feed).len() > 1;
        if (is_shared || self.daemon.is_waited_for(feed)) && !reader.is_copied() {
            let said = "others read the same rings; open the feed with \"own\": true to change it";
            return Err(RpcError::new(SHARED, said));
        }
        change(reader)?;
        if reader.is_copied() {
            self.daemon.follow_change(reader);
        }
        Ok(())
    }

    fn set_filter(&self, number: u64, text: &str) -> Result<Answer, RpcError> {
        let reader = self.feed(number)?;
        self.daemon.usage.take_turn(&self.user())?;
        let source = self.source(&reader.source)?;
        let filter = self.daemon.filter(&self.user(), &reader.source, &source, text)?;
        let handing = self.daemon.handing(&reader.source);
        let _alone = handing.write().unwrap_or_else(PoisonError::into_inner);
        self.change(number, |reader| {
            if self.source(&reader.source)? != source {
                return Err(RpcError::new(BUSY, "the daemon's file has just changed; try again"));
            }
            let subscription = reader.claim.subscription;
            self.daemon.probe.change(subscription, Change::Filter(filter)).map_err(refused)?;
            reader.set_filter(text, source.shown_filter(text));
            Ok(())
        })?;
        done()
    }

    fn block(&self, block: &Block) -> Result<Answer, RpcError> {
        let handing = self.daemon.handing(&self.feed(block.feed)?.source);
        self.daemon.usage.take_turn(&self.user())?;
        let change = read_change(&block.add, &block.remove, block.expires_ms)?;
        let _alone = handing.write().unwrap_or_else(PoisonError::into_inner);
        self.change(block.feed, |reader| {
            self.daemon.block(reader.claim.subscription, &change).map(drop)
        })?;
        done()
    }

    fn block_named(&self, block: &BlockNamed) -> Result<Answer, RpcError> {
        self.daemon.usage.take_turn(&self.user())?;
        let change = read_change(&block.add, &block.remove, block.expires_ms)?;
        answer(self.daemon.block_named(&self.who, &block.name, &change)?)
    }

    fn blocked_named(&self, name: &str) -> Result<Answer, RpcError> {
        self.daemon.usage.take_turn(&self.user())?;
        answer(self.daemon.blocked_named(&self.who, name)?)
    }

    fn statistics_of(&self, readers: &[Arc<Reader>]) -> Result<Vec<Statistics>, RpcError> {
        let claims: Vec<Claim> = readers.iter().map(|reader| reader.claim).collect();
        let ledgers = self.daemon.ledgers_of(&claims)?;
        let of = |reader: &Arc<Reader>| Statistics {
            feed: reader.number,
            source: reader.source.clone(),
            ledger: self.daemon.ledger_of(reader, &ledgers),
        };
        Ok(readers.iter().map(of).collect())
    }
}
