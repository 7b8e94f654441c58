//! The target whose block list is changed: a daemon's feeds, or a running capture.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_client::protocol::{BlockChanged, Blocked, NO_FEED};
use weir_client::{ClientError, Connection, socket_path};
use weir_plug::PlugError;
use weir_plug::message::{BUSY, RpcError};

use crate::change::ask;
use crate::cli::BlockArgs;
use crate::control::rpc::{Block, Method};
use crate::daemon::{self, NoDaemon};

/// The most entries in one request to a daemon.
pub const BATCH: usize = 4096;

/// The longest time for which a request is repeated while the other side is busy.
const BUSY_TIME: Duration = Duration::from_secs(10);

/// A target, and the name of the feed in it.
pub struct Target {
    place: Place,
    feed: String,
}

enum Place {
    /// The --control socket of a capture.
    Capture(PathBuf),
    /// The socket of a daemon.
    Daemon(PathBuf, Option<Connection>),
}

/// Why a list was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The daemon, the capture or the feed does not exist (any more).
    #[error("{0:#}")]
    NotThere(anyhow::Error),
    /// The other side is busy; the request may be repeated.
    #[error("{0}")]
    Busy(RpcError),
    /// The other side refused the request.
    #[error("{0:#}")]
    Refused(anyhow::Error),
}

/// The result of a change.
pub struct Changed {
    /// The response.
    pub json: Value,
    /// Number of entries that were added or removed.
    pub changed: usize,
    /// Number of entries that are blocked now.
    pub entries: usize,
    /// Number of further entries that only some sources of a capture block, because a change could not be undone. 0 for
    /// a daemon.
    pub strays: usize,
    /// The keys of the changed feeds of a daemon; empty for a capture.
    pub keys: BTreeSet<u64>,
}

/// A block list.
pub struct List {
    /// The response.
    pub json: Value,
    /// Entries that all feeds block.
    common: Vec<String>,
    /// Entries that only some of the feeds block, each with a remark.
    strays: BTreeMap<String, String>,
    left: BTreeMap<String, Duration>,
    /// The lists of the sources differ because a change could not be undone.
    is_of_failure: bool,
    /// Number of entries that the response leaves out.
    pub omitted: usize,
}

/// A line of a printed list.
pub struct ListLine<'a> {
    /// The entry, as written for `weir block`.
    pub entry: &'a str,
    /// The remaining time, if the entry expires.
    pub left: Option<Duration>,
    /// A remark on where the entry is blocked, if only some feeds or sources block it.
    pub stray: Option<String>,
    /// Only some sources block the entry, because a change could not be undone.
    pub is_of_failure: bool,
}

impl List {
    /// Returns the entries that all feeds block, followed by those that only some feeds block.
    pub fn lines(&self) -> impl Iterator<Item = ListLine<'_>> {
        let line = |entry, stray: Option<&String>| ListLine {
            entry,
            left: self.left.get(entry).copied(),
            is_of_failure: self.is_of_failure && stray.is_some(),
            stray: stray.cloned(),
        };
        let common = self.common.iter().map(move |entry| line(entry.as_str(), None));
        common.chain(self.strays.iter().map(move |(entry, stray)| line(entry, Some(stray))))
    }

    fn of_capture(json: Value) -> List {
        let strays = strays(&json).into_iter();
        let strays = strays.map(|(entry, at)| (entry, format!("at {} only", at.join(", "))));
        List {
            strays: strays.collect(),
            common: texts(&json["blocked"]),
            left: left(&json),
            is_of_failure: true,
            omitted: 0,
            json,
        }
    }

    fn of_daemon(blocked: Blocked) -> List {
        let json = serde_json::to_value(&blocked).unwrap_or_default();
        let Blocked { feeds, blocked, partly, omitted, .. } = blocked;
        let strays = partly.into_iter();
        let strays = strays.map(|(entry, count)| (entry, format!("in {count} of {feeds} feeds")));
        List {
            common: blocked,
            strays: strays.collect(),
            left: left(&json),
            is_of_failure: false,
            omitted,
            json,
        }
    }
}

impl Target {
    pub fn new(args: &BlockArgs) -> Target {
        let place = match &args.control {
            Some(path) => Place::Capture(path.clone()),
            None => Place::Daemon(socket_path(args.socket.as_deref()), None),
        };
        Target { place, feed: args.feed.clone().unwrap_or_default() }
    }

    /// Requests the block list. Retries while the other side is busy.
    pub fn list(&mut self) -> Result<List, TargetError> {
        self.patiently(Target::list_once)
    }

    fn list_once(&mut self) -> Result<List, TargetError> {
        let feed = self.feed.clone();
        match &self.place {
            Place::Capture(path) => {
                let method = Method::Block(Block { feed, ..Block::default() });
                ask(path, &method).map(List::of_capture).map_err(of_capture)
            }
            Place::Daemon(..) => {
                self.daemon(|daemon| daemon.blocked_named(&feed)).map(List::of_daemon)
            }
        }
    }

    /// Changes the list, with as many requests as necessary. Retries while the other side is busy.
    pub fn change_all(
        &mut self,
        add: &[String],
        remove: &[String],
        time: Option<Duration>,
    ) -> Result<Changed, TargetError> {
        // A capture gets all entries in one message, so that all of them take effect or none.
        let batch = if matches!(self.place, Place::Capture(_)) { usize::MAX } else { BATCH };
        let gone = remove.chunks(batch).map(|some| (&[][..], some));
        let come = add.chunks(batch).map(|some| (some, &[][..]));
        let mut all: Option<Changed> = None;
        for (add, remove) in gone.chain(come) {
            let changed = self.patiently(|target| target.change(add, remove, time))?;
            let before = all.map_or(0, |all| all.changed);
            all = Some(Changed { changed: before + changed.changed, ..changed });
        }
        match all {
            Some(all) => Ok(all),
            None => self.patiently(|target| target.change(&[], &[], None)),
        }
    }

    fn patiently<T>(
        &mut self,
        mut call: impl FnMut(&mut Target) -> Result<T, TargetError>,
    ) -> Result<T, TargetError> {
        let begin = Instant::now();
        loop {
            match call(self) {
                Err(TargetError::Busy(_)) if begin.elapsed() < BUSY_TIME => {
                    sleep(Duration::from_millis(100));
                }
                other => return other,
            }
        }
    }

    /// Changes the list with one request, without retries. Without entries, reads the list only.
    pub fn change(
        &mut self,
        add: &[String],
        remove: &[String],
        time: Option<Duration>,
    ) -> Result<Changed, TargetError> {
        let feed = self.feed.clone();
        match &self.place {
            Place::Capture(path) => {
                let expires_ms = time.and_then(|time| u64::try_from(time.as_millis()).ok());
                let (add, remove) = (add.to_vec(), remove.to_vec());
                let block = Block { feed, add, remove, expires_ms };
                let json = ask(path, &Method::Block(block)).map_err(of_capture)?;
                let changed =
                    json["changed"].as_u64().and_then(|count| usize::try_from(count).ok());
                Ok(Changed {
                    changed: changed.unwrap_or_default(),
                    entries: json["blocked"].as_array().map_or(0, Vec::len),
                    strays: strays(&json).len(),
                    keys: BTreeSet::new(),
                    json,
                })
            }
            Place::Daemon(..) => {
                let told = self.daemon(|daemon| daemon.block_named(&feed, add, remove, time))?;
                let json = serde_json::to_value(&told).unwrap_or_default();
                let BlockChanged { changed, entries, keys, .. } = told;
                Ok(Changed { json, changed, entries, strays: 0, keys: keys.into_iter().collect() })
            }
        }
    }

    /// Calls the daemon over a connection that is reused until a call fails.
    fn daemon<T>(
        &mut self,
        call: impl FnOnce(&Connection) -> Result<T, ClientError>,
    ) -> Result<T, TargetError> {
        let Place::Daemon(path, connection) = &mut self.place else {
            unreachable!("it is a capture");
        };
        let missing = |error: NoDaemon| TargetError::NotThere(error.into());
        let open = match connection.take() {
            Some(open) => open,
            None => daemon::connect(path).map_err(missing)?,
        };
        match call(&open) {
            Ok(told) => {
                *connection = Some(open);
                Ok(told)
            }
            Err(ClientError::Plug(PlugError::Refused(error))) => {
                *connection = Some(open);
                Err(match error.code {
                    BUSY => TargetError::Busy(error),
                    NO_FEED => TargetError::NotThere(error.into()),
                    _ => TargetError::Refused(error.into()),
                })
            }
            Err(source) => Err(missing(NoDaemon::Absent { path: path.clone(), cause: source })),
        }
    }
}

fn of_capture(error: anyhow::Error) -> TargetError {
    match error.downcast::<RpcError>() {
        Ok(error) if error.code == BUSY => TargetError::Busy(error),
        Ok(error) => TargetError::Refused(error.into()),
        Err(error) => TargetError::NotThere(error),
    }
}

/// Returns the entries that only some sources of a capture block, each with these sources.
fn strays(json: &Value) -> BTreeMap<String, Vec<String>> {
    let common: BTreeSet<String> = texts(&json["blocked"]).into_iter().collect();
    let mut strays: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for own in json["sources"].as_array().into_iter().flatten() {
        let source = own["source"].as_str().unwrap_or_default();
        let entries = texts(&own["blocked"]).into_iter().filter(|entry| !common.contains(entry));
        entries.for_each(|entry| strays.entry(entry).or_default().push(source.to_owned()));
    }
    strays
}

fn left(json: &Value) -> BTreeMap<String, Duration> {
    let left = json["left_ms"].as_object().into_iter().flatten();
    left.filter_map(|(entry, ms)| Some((entry.clone(), Duration::from_millis(ms.as_u64()?))))
        .collect()
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(list: &List) -> Vec<(&str, Option<u64>, Option<String>)> {
        let lines = list.lines();
        lines.map(|line| (line.entry, line.left.map(|left| left.as_secs()), line.stray)).collect()
    }

    #[test]
    fn what_only_some_sources_block_is_told_with_their_names() {
        let alike = json!({ "feeds": 2, "blocked": ["10.0.0.1"], "left_ms": { "10.0.0.1": 9500 } });
        assert_eq!(lines(&List::of_capture(alike)), [("10.0.0.1", Some(9), None)]);
        let sources = json!([
            { "source": "eth0", "blocked": ["10.0.0.1", "10.0.0.2"] },
            { "source": "eth1", "blocked": ["10.0.0.1", "10.0.0.2", "10.0.0.3"] },
            { "source": "eth2", "blocked": ["10.0.0.1"] },
        ]);
        let apart = json!({ "feeds": 3, "blocked": ["10.0.0.1"], "sources": sources });
        let apart = List::of_capture(apart);
        assert_eq!(apart.lines().filter(|line| line.is_of_failure).count(), 2);
        assert_eq!(
            lines(&apart),
            [
                ("10.0.0.1", None, None),
                ("10.0.0.2", None, Some("at eth0, eth1 only".into())),
                ("10.0.0.3", None, Some("at eth1 only".into())),
            ]
        );
    }

    #[test]
    fn what_only_some_feeds_of_a_daemon_block_is_told_with_their_number() {
        let list = List::of_daemon(Blocked {
            feeds: 4,
            blocked: vec!["10.0.0.1".into()],
            partly: [("10.0.0.2".into(), 3)].into(),
            left_ms: [("10.0.0.2".into(), 1000)].into(),
            omitted: 0,
        });
        let stray = ("10.0.0.2", Some(1), Some("in 3 of 4 feeds".into()));
        assert_eq!(lines(&list), [("10.0.0.1", None, None), stray]);
        assert!(list.lines().all(|line| !line.is_of_failure));
    }
}
