//! The daemon: a probe, the sources of the configuration file, and the feeds of clients.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use weir_capture::{Feed, Filter, Setup};
use weir_client::protocol::{self, Open};
use weir_filter::Program;
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_plug::Who;
use weir_plug::message::{BUSY, RpcError};
use weir_probe::{BlockLists, FeedId, Probe, ProbeError, SourceSpec, Wants};
use weir_ring::{Ledger, Ring};

use crate::board::Board;
use crate::check::check;
use crate::config::{Config, SourceConfig};
use crate::feed_request::chosen;
use crate::guests::Guests;
use crate::journal::Journal;
use crate::moved::Moved;
use crate::reader::{Opening, Reader};
use crate::refusal::refused;
use crate::resolved::{Resolved, Resolver, compiled};
use crate::slots::{Claim, Slots};
use crate::usage::Usage;
use crate::user::User;

/// The daemon. Dropping it stops all sources.
pub struct Daemon {
    /// Block lists of clients' feeds. Dropped before the probe, which they use until they have ended.
    pub(crate) lists: BlockLists,
    pub(crate) probe: Arc<Probe>,
    pub(crate) board: Arc<Board>,
    pub(crate) slots: Slots,
    pub(crate) usage: Usage,
    /// Feeds that wait for their clients to open them again.
    pub(crate) moved: Moved,
    pub(crate) config: RwLock<Arc<Config>>,
    pub(crate) resolve: Box<Resolver>,
    /// The next group of subscriptions. Each feed with rings of its own has its own group.
    group: AtomicUsize,
    /// A lock for each source. Threads that give its rings to clients hold it shared; threads that remove rights or
    /// change the contents of rings hold it exclusively.
    handing: Mutex<BTreeMap<String, Arc<RwLock<()>>>>,
    /// Messages for the operator of the daemon.
    pub(crate) journal: Journal,
    pub(crate) guests: Guests,
}

impl Daemon {
    /// Creates a daemon whose sources are all closed. `resolve` interprets a source of the file; `log` gets messages
    /// for the operator of the daemon, one line at a time.
    ///
    /// # Errors
    /// A source cannot be resolved, or no thread can be created.
    pub fn new(
        config: Config,
        resolve: impl Fn(&str, &SourceConfig) -> Result<Resolved, String> + Send + Sync + 'static,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Daemon, String> {
        check(&config, &resolve)?.iter().for_each(|warning| log(warning));
        let board = Arc::new(Board::default());
        let told = Arc::clone(&board);
        let probe = Probe::with_listener(move |event| told.note(event));
        let probe = Arc::new(probe.map_err(|error| error.to_string())?);
        let changer = Arc::clone(&probe);
        let lists =
            BlockLists::new(move |subscription, change| changer.change(subscription, change));
        let usage = Usage::new(config.limits.clone());
        let config = RwLock::new(Arc::new(config));
        let (slots, resolve, group) = (Slots::default(), Box::new(resolve), AtomicUsize::new(1));
        let (moved, handing) = (Moved::default(), Mutex::default());
        let journal = Journal::new(log);
        Ok(Daemon {
            lists,
            probe,
            board,
            slots,
            usage,
            moved,
            config,
            resolve,
            group,
            handing,
            journal,
            guests: Guests::default(),
        })
    }

    /// Returns the configuration in force.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of feeds that clients were refused since the daemon started.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.journal.refusals()
    }

    /// Tells whether every source still answers. If a source hangs, this call hangs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.ledgers().is_ok()
    }

    /// Returns the sources that this client may open. The client learns of no others.
    #[must_use]
    pub fn sources(&self, who: &Who) -> BTreeMap<String, SourceConfig> {
        let config = self.config();
        let all = config.sources.iter().filter(|(_, source)| source.allows(who));
        all.map(|(name, source)| (name.clone(), source.clone())).collect()
    }

    /// Returns the source with this name, if this client may open it.
    #[must_use]
    pub fn source(&self, who: &Who, name: &str) -> Option<SourceConfig> {
        self.config().sources.get(name).filter(|source| source.allows(who)).cloned()
    }

    /// Returns the lock that is held while rings of this source are given to clients or changed.
    pub(crate) fn handing(&self, source: &str) -> Arc<RwLock<()>> {
        let mut all = self.handing.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(source.to_owned()).or_default())
    }

    /// Returns the pcap link type of a source's frames; Ethernet if it is not known.
    pub(crate) fn link_type(&self, name: &str, source: &SourceConfig) -> u16 {
        let known = (self.resolve)(name, source).ok().and_then(|of| of.link_type().ok());
        known.unwrap_or(LINKTYPE_ETHERNET)
    }

    /// Opens a feed of a source for a client.
    pub(crate) fn open(
        &self,
        opening: Opening,
        source: &SourceConfig,
        open: &Open,
    ) -> Result<Arc<Reader>, RpcError> {
        let name = opening.source.clone();
        // Compiling and resolving can take long, so no lock is held.
        let filter = self.filter(&User::from(&opening.who), &name, source, &open.filter)?;
        let resolved = (self.resolve)(&name, source).map_err(RpcError::refused)?;
        let is_sealed = opening.copied.is_some() && resolved.may_fill_bpf_arrays();
        let interface = Interface {
            name: name.clone(),
            filter: filter.as_ref().map(|filter| filter.text.clone()),
            link_type: LINKTYPE_ETHERNET,
            ..Interface::default()
        };
        let snaplen = source.snaplen;
        let feed = Feed { filter, interface, snaplen, is_sealed, ..Feed::default() };
        // A guest's copy can follow its feed to other rings, so it shares rings until the guest
        // changes its filter or block list.
        let is_own = match opening.who {
            Who::Guest(_) => open.name.is_some(),
            Who::Process(_) => open.has_own_rings(),
        };
        let group = if is_own { self.group.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let wants = Wants { group, ..Wants::from(chosen(feed, open)?) };
        let spec = spec(&name, source, resolved).map_err(RpcError::refused)?;
        let handing = self.handing(&name);
        let _handing = handing.read().unwrap_or_else(PoisonError::into_inner);
        // The configuration may have changed since it was read.
        if self.source(&opening.who, &name).as_ref() != Some(source) {
            return Err(RpcError::new(BUSY, "the daemon's file has just changed; try again"));
        }
        let opened = self.slots.open(
            &name,
            &self.probe,
            || spec,
            wants,
            |claim| {
                let (feed, _) = self.probe.feed_of(claim.subscription).ok_or(ProbeError::Ended)?;
                Ok((feed, self.probe.rings_of(claim.subscription)))
            },
        );
        let (claim, (feed, rings)) = opened.map_err(refused)?;
        if claim.is_first {
            let info = self.probe.info_of(claim.source).unwrap_or_default();
            self.journal.opened(&name, &info);
        }
        let account = match self.board.was_handed(feed) {
            // No client has got frames of these rings.
            false => (vec![0; rings.len()], Ledger::default()),
            true => {
                let from = rings.iter().map(Ring::frames_written).collect();
                let base = self.ledgers_of(&[claim]).ok().and_then(|mut all| all.remove(&feed));
                let base = base.or_else(|| self.board.closed(feed).flatten());
                if base.is_none() && matches!(opening.who, Who::Guest(_)) {
                    // With wrong counts, the guest would learn how many frames other clients have got.
                    self.leave(&name, claim);
                    return Err(RpcError::new(BUSY, "the source does not answer; try again"));
                }
                (from, base.unwrap_or_default())
            }
        };
        let reader = Arc::new(Reader::new(opening, claim, feed, rings, account));
        self.board.add(&reader);
        Ok(reader)
    }

    /// Gives a client its feed that was moved to new rings, if it makes exactly the same request.
    pub(crate) fn open_moved(&self, opening: Box<Opening>) -> Result<Arc<Reader>, Box<Opening>> {
        let handing = self.handing(&opening.source);
        let _handing = handing.read().unwrap_or_else(PoisonError::into_inner);
        let Some(moved) = self.moved.take(&opening.who, &opening.asked) else {
            return Err(opening);
        };
        let rings = self.probe.rings_of(moved.claim.subscription);
        let Some((feed, _)) = self.probe.feed_of(moved.claim.subscription) else {
            // The source of the feed has ended in the meantime.
            self.leave(&opening.source, moved.claim);
            return Err(opening);
        };
        let account = (vec![0; rings.len()], Ledger::default());
        let reader = Arc::new(Reader::new(*opening, moved.claim, feed, rings, account));
        self.board.add(&reader);
        Ok(reader)
    }

    /// Returns the current ledgers of all rings.
    pub(crate) fn ledgers(&self) -> Result<BTreeMap<FeedId, Ledger>, RpcError> {
        Ok(self.probe.ledgers().map_err(refused)?.into_iter().collect())
    }

    /// Returns the current ledgers for the sources of these subscriptions. Does not wait for other sources.
    pub(crate) fn ledgers_of(
        &self,
        claims: &[Claim],
    ) -> Result<BTreeMap<FeedId, Ledger>, RpcError> {
        let sources = claims.iter().map(|claim| claim.source).collect();
        Ok(self.probe.ledgers_of(sources).map_err(refused)?.into_iter().collect())
    }

    /// Returns the counts of a feed's frames, computed from the ledgers of the rings.
    pub(crate) fn ledger_of(
        &self,
        reader: &Reader,
        ledgers: &BTreeMap<FeedId, Ledger>,
    ) -> Option<protocol::Ledger> {
        if let Some(account) = reader.closed_account() {
            return account;
        }
        let reads = reader.reads();
        let closed = self.board.closed(reads.feed).flatten();
        Some(reader.account(&reads, closed.as_ref().or_else(|| ledgers.get(&reads.feed))?))
    }

    /// Returns the filter for a client's feed of this source: the file's filter combined with the client's.
    pub(crate) fn filter(
        &self,
        user: &User,
        name: &str,
        source: &SourceConfig,
        of_client: &str,
    ) -> Result<Option<Arc<Filter>>, RpcError> {
        let link_type = self.link_type(name, source);
        let (own, client) = (source.own_filter(), of_client.trim());
        if own.is_none() && client.is_empty() {
            return Ok(None);
        }
        let _compiling = self.usage.compile(user)?;
        let wrong = |what: String| RpcError::params(format!("the filter: {what}"));
        let own = own.map(|text| compiled(text, link_type)).transpose();
        let own = own.map_err(|what| {
            RpcError::refused(format!("the filter of this source in the daemon's file: {what}"))
        })?;
        // Each filter is compiled separately: joined text could have another meaning.
        let client = Some(client).filter(|text| !text.is_empty());
        let client = client.map(|text| compiled(text, link_type)).transpose();
        let client = client.map_err(|error| wrong(error.to_string()))?;
        let program = match (own, client) {
            (Some(own), Some(client)) => {
                Program::both(&own, &client).map_err(|error| wrong(error.to_string()))?
            }
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return Ok(None),
        };
        let text = source.written_filter(of_client);
        Ok(Some(Arc::new(Filter { text, link_type, program })))
    }
}

/// Describes how a source is opened.
fn spec(name: &str, source: &SourceConfig, of: Resolved) -> Result<SourceSpec, String> {
    let Resolved { target, request, owner_finder } = of;
    let (ring_bytes, promiscuous) = (source.ring_mib() << 20, source.promiscuous);
    let near_nic = source.cpus.is_none();
    let cpus = source.cpus.as_deref().map(str::parse).transpose()?;
    let spec = SourceSpec::new(name, move |feeds| {
        let setup = Setup {
            feeds,
            ring_bytes,
            promiscuous,
            may_change: true,
            // Captures both directions, whatever the first client requests, because a later client may want both.
            both_directions: true,
            is_for_clients: true,
            owner_finder: owner_finder.clone(),
            near_nic,
            ..Setup::default()
        };
        request.open(&target, &setup)
    });
    Ok(SourceSpec { cpus, ..spec })
}
