//! The methods of `capture`, and what is taken back when a client goes.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_capture::error::error_text;
use weir_capture::{Change, Direction, Feed};
use weir_client::protocol::{
    self, APPLICATION, Block, Changed, Closed, Left, OfFeed, Open, Opened, SetFilter, Source,
    Statistics,
};
use weir_filter::block::EntryError;
use weir_plug::message::RpcError;
use weir_plug::{Answer, Application, Credentials, Peer, Session};
use weir_probe::{FeedId, Joined, ProbeError, RemoteConsumer, Update};
use weir_ring::wake::Waker;

use crate::config::SourceConfig;
use crate::daemon::Daemon;
use crate::slots::Claim;

const METHODS: [&str; 7] =
    ["sources", "open", "close", "let_go", "set_filter", "block", "statistics"];

/// The application `capture`.
pub struct Capture(Arc<Daemon>);

impl Capture {
    /// Serves what the daemon has.
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
        let nobody = || RpcError::refused("it is not known who you are on this transport");
        let who = peer.credentials().ok_or_else(nobody)?;
        let (daemon, peer) = (Arc::clone(&self.0), Arc::clone(peer));
        Ok(Box::new(Client { daemon, peer, who, feeds: BTreeMap::new() }))
    }
}

/// A client's feeds.
struct Client {
    daemon: Arc<Daemon>,
    peer: Arc<Peer>,
    who: Credentials,
    feeds: BTreeMap<u64, Held>,
}

/// A feed of a client.
struct Held {
    name: String,
    mib: u64,
    claim: Claim,
    remote: RemoteConsumer,
    lines: usize,
    /// What it reads now.
    feed: FeedId,
    /// It has been closed, and its consumer may still be reading.
    is_closed: bool,
}

impl Drop for Client {
    fn drop(&mut self) {
        while let Some((number, held)) = self.feeds.pop_first() {
            self.let_go(number, held);
        }
    }
}

impl Session for Client {
    fn call(&mut self, method: &str, params: Value, fds: Vec<OwnedFd>) -> Result<Answer, RpcError> {
        match method {
            "sources" => self.sources(),
            "open" => self.open(&read(params)?, fds),
            "close" => self.close(&read(params)?),
            "let_go" => {
                let OfFeed { feed } = read(params)?;
                if let Some(held) = self.feeds.remove(&feed) {
                    self.let_go(feed, held);
                }
                Ok(json!({}).into())
            }
            "set_filter" => {
                let SetFilter { feed, filter } = read(params)?;
                self.change(feed, fds, |daemon, name, source| {
                    Ok(Change::Filter(daemon.filter(name, source, &filter).map_err(refused)?))
                })
            }
            "block" => {
                let Block { feed, add, remove } = read(params)?;
                self.change(feed, fds, |_, _, _| {
                    let entries = |texts: Vec<String>| {
                        let parsed = texts.iter().map(|text| text.parse());
                        parsed.collect::<Result<_, EntryError>>()
                    };
                    let wrong = |error: EntryError| RpcError::params(error.to_string());
                    let (remove, add) =
                        (entries(remove).map_err(wrong)?, entries(add).map_err(wrong)?);
                    Ok(Change::Block { remove, add })
                })
            }
            "statistics" => self.statistics(),
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

fn refused(error: ProbeError) -> RpcError {
    RpcError::refused(error_text(&error))
}

/// The same answer for what is not there and for what is not allowed.
fn no_source(name: &str) -> RpcError {
    RpcError::refused(format!(
        "there is no source '{name}'; capture.sources names those that there are"
    ))
}

impl Client {
    fn source(&self, name: &str) -> Result<SourceConfig, RpcError> {
        let mut allowed = self.daemon.sources(self.who);
        let own = allowed.find(|(own, _)| *own == name);
        own.map(|(_, source)| source.clone()).ok_or_else(|| no_source(name))
    }

    fn sources(&self) -> Result<Answer, RpcError> {
        let of = |(name, source): (&str, &SourceConfig)| Source {
            source: name.to_owned(),
            snaplen: source.snaplen,
        };
        answer(json!({ "sources": self.daemon.sources(self.who).map(of).collect::<Vec<_>>() }))
    }

    fn open(&mut self, open: &Open, fds: Vec<OwnedFd>) -> Result<Answer, RpcError> {
        let source = self.source(&open.source)?;
        if self.feeds.contains_key(&open.feed) {
            return Err(RpcError::params(format!("feed {} is open already", open.feed)));
        }
        self.daemon.usage.open(self.who.uid, source.ring_mib)?;
        let held = self.open_held(open, &source, fds).inspect_err(|_| {
            self.daemon.usage.close(self.who.uid, source.ring_mib);
        });
        let (held, joined) = held?;
        let number = open.feed;
        self.daemon.board.watch(held.feed);
        self.daemon.board.join(held.claim.source, &self.peer, number);
        let told = self.told(&held, &joined);
        self.feeds.insert(number, held);
        // It may have ended before it was joined to the board.
        let is_over = self.daemon.probe.feed_of(self.feeds[&number].claim.subscription).is_none();
        if is_over {
            let params = json!({ "feed": number, "reason": "its source has ended" });
            let _ = self.peer.notify("capture.gone", params, Vec::new());
        }
        told
    }

    fn open_held(
        &self,
        open: &Open,
        source: &SourceConfig,
        fds: Vec<OwnedFd>,
    ) -> Result<(Held, Joined), RpcError> {
        let daemon = &self.daemon;
        let waker = waker(fds, open.lines)?;
        let feed = daemon.feed(&open.source, source, &open.filter).map_err(refused)?;
        let feed = chosen(feed, open)?;
        let spec = daemon.spec(&open.source, source).map_err(refused)?;
        let remote = daemon.probe.add_remote_consumer(open.lines).map_err(refused)?;
        remote.give_channel(waker).map_err(refused)?;
        let opened = daemon.slots.open(
            &open.source,
            &daemon.probe,
            || spec,
            feed.into(),
            |claim| daemon.probe.attach(remote.id, claim.subscription),
        );
        let (claim, ()) = opened.map_err(refused)?;
        let joined = remote.take_updates().into_iter().find_map(|update| match update {
            Update::Joined(joined) => Some(joined),
            Update::Left(..) => None,
        });
        let Some(joined) = joined else {
            daemon.slots.close(&open.source, &daemon.probe, claim);
            return Err(RpcError::refused("its source ended before it was opened"));
        };
        let (name, mib, lines) = (open.source.clone(), source.ring_mib, open.lines);
        let feed = joined.feed;
        Ok((Held { name, mib, claim, remote, lines, feed, is_closed: false }, joined))
    }

    /// What the client is told of a feed that it has joined, with its rings.
    fn told(&self, held: &Held, joined: &Joined) -> Result<Answer, RpcError> {
        let info = self.daemon.probe.info_of(held.claim.source).unwrap_or_default();
        let opened = Opened {
            key: joined.feed.number(),
            first_line: joined.first_line,
            channel: joined.channel.unwrap_or_default(),
            engine: info.engine.to_owned(),
            hook: info.hook.map(str::to_owned),
            why: info.why,
            notes: info.notes,
        };
        let rings = joined.rings.iter().map(|ring| ring.memory().as_fd().try_clone_to_owned());
        let descriptors: Result<Vec<OwnedFd>, _> = rings.collect();
        let descriptors = descriptors.map_err(|error| RpcError::refused(error.to_string()))?;
        Ok(Answer { descriptors, ..answer(opened)? })
    }

    /// Ends the subscription, and gives its account. The consumer keeps its channels until it is let go.
    fn close(&mut self, OfFeed { feed }: &OfFeed) -> Result<Answer, RpcError> {
        let Client { daemon, peer, feeds, .. } = self;
        let held = feeds.get_mut(feed).filter(|held| !held.is_closed);
        let held = held.ok_or_else(|| RpcError::params(format!("there is no feed {feed}")))?;
        held.is_closed = true;
        daemon.board.leave(peer, *feed);
        daemon.slots.close(&held.name, &daemon.probe, held.claim);
        let key = held.feed.number();
        if let Some(ledger) = daemon.board.closed(held.feed) {
            let ledger = ledger.as_ref().map(protocol::Ledger::from);
            return answer(Closed { key, ended: true, until: Vec::new(), ledger });
        }
        let until = held.remote.take_updates().into_iter().find_map(|update| match update {
            Update::Left(of, until) if of == held.feed => Some(until),
            _ => None,
        });
        let ledgers = daemon.probe.ledgers().map_err(refused)?;
        let ledger = ledgers.iter().find(|(of, _)| *of == held.feed);
        let ledger = ledger.map(|(_, ledger)| protocol::Ledger::from(ledger));
        answer(Closed { key, ended: false, until: until.unwrap_or_default(), ledger })
    }

    fn let_go(&self, number: u64, held: Held) {
        let Held { name, mib, claim, remote, feed, is_closed, .. } = held;
        if !is_closed {
            self.daemon.board.leave(&self.peer, number);
            self.daemon.slots.close(&name, &self.daemon.probe, claim);
        }
        drop(remote);
        self.daemon.board.unwatch(feed);
        self.daemon.usage.close(self.who.uid, mib);
    }

    /// Changes a feed; if others read the same, the client moves to rings of its own.
    fn change(
        &mut self,
        number: u64,
        fds: Vec<OwnedFd>,
        change: impl FnOnce(&Daemon, &str, &SourceConfig) -> Result<Change, RpcError>,
    ) -> Result<Answer, RpcError> {
        let held = self.feeds.get(&number).filter(|held| !held.is_closed);
        let held = held.ok_or_else(|| RpcError::params(format!("there is no feed {number}")))?;
        // First of all: both sides number channels in the order in which they are given, also where the change is
        // refused.
        if !fds.is_empty() {
            held.remote.give_channel(waker(fds, held.lines)?).map_err(refused)?;
        }
        let source = self.source(&held.name)?;
        self.daemon.usage.take_turn(self.who.uid)?;
        let change = change(&self.daemon, &held.name, &source)?;
        self.daemon.probe.change(held.claim.subscription, change).map_err(refused)?;
        let (mut changed, mut descriptors, mut moved) = (Changed::default(), Vec::new(), None);
        for update in held.remote.take_updates() {
            match update {
                Update::Joined(joined) => {
                    let told = self.told(held, &joined)?;
                    changed.joined = Some(read(told.result)?);
                    (descriptors, moved) = (told.descriptors, Some(joined.feed));
                }
                Update::Left(feed, until) => {
                    changed.left = Some(Left { key: feed.number(), until });
                }
            }
        }
        if let Some(feed) = moved {
            let held = self.feeds.get_mut(&number).expect("it is there");
            self.daemon.board.watch(feed);
            self.daemon.board.unwatch(std::mem::replace(&mut held.feed, feed));
        }
        Ok(Answer { descriptors, ..answer(changed)? })
    }

    fn statistics(&self) -> Result<Answer, RpcError> {
        let ledgers = self.daemon.probe.ledgers().map_err(refused)?;
        let of = |(&number, held): (&u64, &Held)| {
            let closed = self.daemon.board.closed(held.feed).flatten();
            let now = ledgers.iter().find(|(feed, _)| *feed == held.feed);
            let ledger = closed.as_ref().or(now.map(|(_, ledger)| ledger));
            let ledger = ledger.map(protocol::Ledger::from);
            Statistics { feed: number, source: held.name.clone(), ledger }
        };
        answer(json!({ "feeds": self.feeds.iter().map(of).collect::<Vec<_>>() }))
    }
}

/// What wakes the client: the two descriptors that came with its message.
fn waker(fds: Vec<OwnedFd>, lines: usize) -> Result<Waker, RpcError> {
    let count = fds.len();
    let [page, socket] = <[OwnedFd; 2]>::try_from(fds).map_err(|_| {
        RpcError::params(format!("{count} descriptors came; a channel has 2: wake page and socket"))
    })?;
    Waker::attach(page, socket, lines).map_err(|error| RpcError::params(error.to_string()))
}

/// The feed with what the client chose.
fn chosen(mut feed: Feed, open: &Open) -> Result<Feed, RpcError> {
    if let Some(snaplen) = open.snaplen {
        if snaplen == 0 {
            return Err(RpcError::params("snaplen is 1 or more"));
        }
        feed.snaplen = feed.snaplen.min(snaplen);
    }
    feed.direction = match open.direction {
        protocol::Direction::In => Direction::In,
        protocol::Direction::Out => Direction::Out,
        protocol::Direction::Both => Direction::Both,
    };
    if let Some(part) = &open.part {
        let wrong =
            || format!("'{part}' is no part: 2/4 is the second of four shards, q2 an RX queue");
        let wrong = || RpcError::params(wrong());
        match part.strip_prefix('q') {
            // All ones means any queue.
            Some(queue) => feed.queue = Some(queue.parse::<u16>().map_err(|_| wrong())?.into()),
            None => feed.shard = part.parse().map_err(|_| wrong())?,
        }
    }
    feed.interface.snaplen = feed.snaplen;
    Ok(feed)
}
