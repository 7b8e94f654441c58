//! The status of the daemon: open feeds, their clients, and the counts of their frames.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_client::protocol::{self, Ledger as ToldLedger};
use weir_client::status::{ClientStatus, FeedStatus, SourceStatus, Status};
use weir_plug::{Credentials, Who};
use weir_probe::FeedId;
use weir_ring::Ledger;

use crate::config::SourceConfig;
use crate::daemon::Daemon;
use crate::missing::{WHO_MAY, lacks, missing};
use crate::reader::Reader;
use crate::slots::Claim;

/// Returns the credentials of a reader's process. A guest has none, because it has no user on this machine.
fn process(reader: &Reader) -> Credentials {
    match &reader.who {
        Who::Process(credentials) => credentials.clone(),
        Who::Guest(_) => Credentials { uid: NOBODY, gid: NOBODY, ..Credentials::default() },
    }
}

/// No user has this id. Source: chown(2), where it means "no change".
const NOBODY: u32 = u32::MAX;

/// The daemon's name and version.
const DAEMON: &str = concat!("weir ", env!("CARGO_PKG_VERSION"));

impl Daemon {
    /// Returns the same as [`status`](Daemon::status), with the reasons why closed sources cannot be opened. This may
    /// ask a container engine about each source, so it is meant for people, not for scrapes of metrics.
    pub(crate) fn status_with_reasons(
        &self,
        sources: &BTreeMap<String, SourceConfig>,
        sees: impl Fn(&Reader) -> bool,
    ) -> Status {
        let mut status = self.status(sources, sees);
        for told in status.sources.iter_mut().filter(|told| !told.is_open) {
            if let Some(source) = sources.get(&told.source) {
                told.unavailable = self.unavailable(&told.source, source);
            }
        }
        status
    }

    /// Returns the status of these sources and their open feeds. `sees` selects the clients' feeds that are shown.
    #[must_use]
    pub fn status(
        &self,
        sources: &BTreeMap<String, SourceConfig>,
        sees: impl Fn(&Reader) -> bool,
    ) -> Status {
        let ledgers = self.ledgers().unwrap_or_default();
        let mut readers = self.board.readers();
        readers.retain(|reader| sees(reader));
        let mut feeds: BTreeMap<FeedId, Vec<&Arc<Reader>>> = BTreeMap::new();
        for reader in readers.iter().filter(|reader| !reader.is_closed()) {
            feeds.entry(reader.feed()).or_default().push(reader);
        }
        let feed = |(id, own): (&FeedId, &Vec<&Arc<Reader>>)| FeedStatus {
            key: id.number(),
            source: own[0].source.clone(),
            filter: own[0].filter(),
            rings: own[0].reads().rings.len(),
            readers: own.len(),
            ledger: ledgers.get(id).map(ToldLedger::from),
        };
        Status {
            daemon: DAEMON.to_owned(),
            sources: sources
                .iter()
                .map(|(name, source)| self.source_status(name, source))
                .collect(),
            feeds: feeds.iter().map(feed).collect(),
            clients: readers.iter().map(|reader| self.client_status(reader, &ledgers)).collect(),
        }
    }

    /// Returns the status for a guest: its own feeds, as if no other client read the sources. The rings that it shares
    /// with others must not be shown: their ledger began before its feed, and their numbers count feeds of others.
    #[must_use]
    pub(crate) fn status_of_guest(
        &self,
        sources: &BTreeMap<String, SourceConfig>,
        guest: &str,
    ) -> Status {
        let mut readers = self.board.readers();
        readers.retain(|reader| matches!(&reader.who, Who::Guest(name) if **name == *guest));
        let claims: Vec<Claim> = readers.iter().map(|reader| reader.claim).collect();
        let ledgers = self.ledgers_of(&claims).unwrap_or_default();
        let client = |reader: &Arc<Reader>| ClientStatus {
            key: reader.key(),
            connection: 0,
            ..self.client_status(reader, &ledgers)
        };
        let clients: Vec<ClientStatus> = readers.iter().map(client).collect();
        let feed = |client: &ClientStatus| FeedStatus {
            key: client.key,
            source: client.source.clone(),
            filter: client.filter.clone(),
            rings: 1,
            readers: 1,
            ledger: client.ledger.clone(),
        };
        let open = || clients.iter().filter(|client| !client.is_closed);
        let source = |(name, source): (&String, &SourceConfig)| match open()
            .any(|client| client.source == *name)
        {
            true => self.source_status(name, source),
            false => closed(name, source),
        };
        Status {
            daemon: DAEMON.to_owned(),
            sources: sources.iter().map(source).collect(),
            feeds: open().map(feed).collect(),
            clients,
        }
    }

    fn client_status(
        &self,
        reader: &Arc<Reader>,
        ledgers: &BTreeMap<FeedId, Ledger>,
    ) -> ClientStatus {
        let process = process(reader);
        let lag = if reader.is_closed() { None } else { reader.lag() };
        ClientStatus {
            guest: match &reader.who {
                Who::Guest(name) => Some(name.to_string()),
                Who::Process(_) => None,
            },
            uid: process.uid,
            gid: process.gid,
            pid: process.pid,
            connection: reader.peer.number(),
            number: reader.number,
            name: reader.asked.name.clone(),
            key: reader.feed().number(),
            source: reader.source.clone(),
            filter: reader.filter(),
            seconds: reader.since.elapsed().as_secs(),
            is_closed: reader.is_closed(),
            consumers: reader.consumers(),
            lag: lag.map(|lag| lag.frames),
            lapped: lag.map(|lag| lag.lapped),
            ledger: self.ledger_of(reader, ledgers),
        }
    }

    fn source_status(&self, name: &str, source: &SourceConfig) -> SourceStatus {
        let open = self.slots.source(name);
        let info = open.and_then(|id| self.probe.info_of(id)).unwrap_or_default();
        SourceStatus {
            is_open: open.is_some(),
            engine: info.engine.to_owned(),
            hook: info.hook.map(str::to_owned),
            notes: info.notes,
            owner: info.owner.as_ref().map(protocol::Owner::from),
            ..closed(name, source)
        }
    }

    /// Returns the reason why nobody can open this source now, as far as it can be determined without opening the
    /// source.
    fn unavailable(&self, name: &str, source: &SourceConfig) -> Option<String> {
        if source.allows_nobody() {
            return Some(format!("the file allows nobody; {WHO_MAY}"));
        }
        let target = (self.resolve)(name, source).ok()?.target;
        let of_rights = || lacks(&target).map(|right| format!("the daemon lacks {right}"));
        missing(&target).or_else(of_rights)
    }
}

/// Returns the status of a source without readers.
fn closed(name: &str, source: &SourceConfig) -> SourceStatus {
    let (source, captures) = (name.to_owned(), source.text(name).to_owned());
    SourceStatus { source, captures, ..SourceStatus::default() }
}
