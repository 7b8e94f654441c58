//! What a capture lets others change, and what has come of that.
//!
//! A change goes to all feeds of a name, which are several sources': to all of them or to none. One that refuses has it
//! taken back from those that had taken it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Error, Result, anyhow, bail};
use serde_json::{Value, json};
use weir_capture::error::error_text;
use weir_capture::{CaptureError, Change, Filter};
use weir_filter::block::Entry;
use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_probe::{Probe, ProbeError};

use super::rpc::{Block, Method, SetFilter};
use crate::feeds::compile;
use crate::journal::Journal;
use crate::report::counts;
use crate::sources::{Subscribed, Subscriptions};

/// The feeds of a capture.
pub struct Served {
    probe: Arc<Probe>,
    journal: Arc<Journal>,
    subscriptions: Arc<Subscriptions>,
    /// By feed. Held while anything changes: two changes at a time would not know of each other.
    state: Mutex<Vec<Now>>,
}

/// What a feed is by now.
struct Now {
    in_force: InForce,
    /// Its block list.
    list: BTreeSet<Entry>,
    /// Its source has ended: nothing more comes that a change would be for.
    has_ended: bool,
}

/// What a feed chooses by now.
#[derive(Clone, Debug)]
pub struct InForce {
    /// Its filter; `None` takes all.
    pub filter: Option<Arc<Filter>>,
    /// How often that was changed; one that was taken back has been changed twice.
    pub changes: u64,
}

impl Now {
    fn new(filter: Option<Arc<Filter>>) -> Now {
        Now { in_force: InForce { filter, changes: 0 }, list: BTreeSet::new(), has_ended: false }
    }

    /// Notes a change that was made; gives the one that takes it back.
    fn note(&mut self, change: Change) -> Change {
        match change {
            Change::Filter(filter) => {
                self.in_force.changes += 1;
                Change::Filter(std::mem::replace(&mut self.in_force.filter, filter))
            }
            Change::Block { mut remove, mut add } => {
                remove.retain(|entry| self.list.remove(entry));
                add.retain(|entry| self.list.insert(*entry));
                Change::Block { remove: add, add: remove }
            }
        }
    }
}

impl Served {
    pub fn new(
        probe: Arc<Probe>,
        journal: Arc<Journal>,
        subscriptions: Arc<Subscriptions>,
    ) -> Served {
        let feeds = subscriptions.feeds.iter();
        let state = Mutex::new(feeds.map(|feed| Now::new(feed.takes.filter.clone())).collect());
        Served { probe, journal, subscriptions, state }
    }

    pub fn in_force(&self) -> Vec<InForce> {
        self.state().iter().map(|now| now.in_force.clone()).collect()
    }

    pub fn carry_out(&self, method: Method) -> Result<Value> {
        match method {
            Method::SetFilter(SetFilter { feed, filter }) => self.set_filter(&feed, &filter),
            Method::Block(block) => self.block(block),
            Method::Ledgers(_) => self.ledgers(),
        }
    }

    /// The ledgers so far. While frames come, the counts of one are not of one instant.
    fn ledgers(&self) -> Result<Value> {
        self.journal.count(self.probe.ledgers()?);
        let of_one = |feed: &Subscribed| {
            let mut ledger = counts(&self.journal.ledger(feed.subscription));
            let source = &self.subscriptions.sources[feed.source];
            ledger["source"] = json!(self.subscriptions.name_of(feed));
            ledger["feed"] = json!(feed.name);
            ledger["ended"] = json!(self.journal.has_ended(source.id));
            ledger
        };
        Ok(json!({ "feeds": self.feeds().iter().map(of_one).collect::<Vec<_>>() }))
    }

    fn feeds(&self) -> &[Subscribed] {
        &self.subscriptions.feeds
    }

    fn link_type(&self, at: usize) -> u16 {
        self.subscriptions.sources[self.feeds()[at].source].link_type
    }

    fn state(&self) -> MutexGuard<'_, Vec<Now>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_filter(&self, name: &str, text: &str) -> Result<Value> {
        let own = self.named(name)?;
        // All of them compile before any changes.
        let compiled = own.iter().map(|&at| Ok((at, compile(text, self.link_type(at))?)));
        let compiled: BTreeMap<_, _> = compiled.collect::<Result<_>>()?;
        let change = |at| Change::Filter(compiled[&at].clone());
        let changed = self.change_all(&mut self.state(), &own, change)?;
        Ok(json!({ "feeds": changed, "filter": text }))
    }

    fn block(&self, Block { feed, add, remove }: Block) -> Result<Value> {
        let own = self.named(&feed)?;
        if let Some(&other) = own.iter().find(|&&at| self.link_type(at) != LINKTYPE_ETHERNET) {
            let source = self.source(other);
            bail!("block lists are of Ethernet frames only, and {source} has another link type");
        }
        let parse = |texts: Vec<String>| -> Result<Vec<Entry>> {
            texts.iter().map(|text| Ok(text.parse()?)).collect()
        };
        let (add, remove) = (parse(add)?, parse(remove)?);
        let mut state = self.state();
        if add.is_empty() && remove.is_empty() {
            return Ok(self.blocked(&state, &own, own.len()));
        }
        let before = &state[own[0]].list;
        let news = add.iter().filter(|entry| !before.contains(entry)).collect::<BTreeSet<_>>();
        let gone = remove.iter().filter(|entry| before.contains(entry)).collect::<BTreeSet<_>>();
        let entries = news.len() + gone.len();
        let change = |_| Change::Block { remove: remove.clone(), add: add.clone() };
        let changed = self.change_all(&mut state, &own, change)?;
        let mut result = self.blocked(&state, &own, changed);
        result["changed"] = json!(entries);
        Ok(result)
    }

    /// What these feeds block: one list, unless a change could not be taken back. Then `blocked` is what all of them
    /// block, and each has its own in `sources`.
    fn blocked(&self, state: &[Now], own: &[usize], changed: usize) -> Value {
        let texts = |list: &BTreeSet<Entry>| list.iter().map(Entry::to_string).collect::<Vec<_>>();
        let alive: Vec<usize> = own.iter().copied().filter(|&at| !state[at].has_ended).collect();
        let shown = if alive.is_empty() { own } else { &alive };
        let first = &state[shown[0]].list;
        if shown.iter().all(|&at| state[at].list == *first) {
            return json!({ "feeds": changed, "blocked": texts(first) });
        }
        let by_all = |entry: &&Entry| shown.iter().all(|&at| state[at].list.contains(entry));
        let common = first.iter().filter(by_all).copied().collect();
        let of_one =
            |&at: &usize| json!({ "source": self.source(at), "blocked": texts(&state[at].list) });
        let sources: Vec<Value> = shown.iter().map(of_one).collect();
        json!({ "feeds": changed, "blocked": texts(&common), "sources": sources })
    }

    /// As the user named it, with the part that the feed is of.
    fn source(&self, at: usize) -> String {
        self.subscriptions.name_of(&self.feeds()[at])
    }

    /// The feeds of this name: one of each source. None of them shares its rings with one of another name.
    fn named(&self, name: &str) -> Result<Vec<usize>> {
        let all = self.feeds().iter().enumerate();
        let own: Vec<usize> = all.filter(|(_, feed)| feed.name == name).map(|(at, _)| at).collect();
        if own.is_empty() {
            let names: BTreeSet<_> = self.feeds().iter().map(|feed| feed.name.as_str()).collect();
            let names: Vec<_> = names.into_iter().collect();
            match names[..] {
                [""] => bail!(
                    "there is no feed '{name}'; the one that there is has no name, so leave --feed out"
                ),
                _ if name.is_empty() => {
                    bail!("say which feed: --feed NAME; there are: {}", names.join(", "))
                }
                _ => bail!("there is no feed '{name}'; there are: {}", names.join(", ")),
            }
        }
        if let Some(other) = own.iter().find_map(|&at| self.sharing(&self.feeds()[at])) {
            bail!(
                "feed '{name}' shares its rings with '{other}', which takes the same, so neither can be changed; start \
                 the capture with something that differs in them, if only a snaplen"
            );
        }
        Ok(own)
    }

    /// Another feed that reads the same rings.
    fn sharing(&self, feed: &Subscribed) -> Option<&str> {
        let is_same = |other: &&Subscribed| other.output == feed.output && other.name != feed.name;
        self.feeds().iter().find(is_same).map(|other| other.name.as_str())
    }

    /// Changes all of the feeds whose sources have not ended, or none; gives how many those are.
    fn change_all(
        &self,
        state: &mut [Now],
        own: &[usize],
        change: impl Fn(usize) -> Change,
    ) -> Result<usize> {
        let mut made = Vec::new();
        for &at in own {
            match self.change(&mut state[at], at, change(at)) {
                Ok(back) => made.push((at, back)),
                Err(CaptureError::Ended) => {}
                Err(error) => return Err(self.take_back(state, made, own.len(), (at, error))),
            }
        }
        if made.is_empty() { Err(CaptureError::Ended.into()) } else { Ok(made.len()) }
    }

    /// Changes one of them; gives the change that takes this one back.
    fn change(&self, now: &mut Now, at: usize, change: Change) -> Result<Change, CaptureError> {
        if now.has_ended {
            return Err(CaptureError::Ended);
        }
        let subscription = self.feeds()[at].subscription;
        let changed =
            self.probe.change(subscription, change.clone()).map_err(|error| match error {
                ProbeError::Capture(error) => error,
                // Whatever it is that is not there any more.
                _ => CaptureError::Ended,
            });
        now.has_ended = matches!(changed, Err(CaptureError::Ended));
        changed?;
        self.subscriptions.look(&self.probe);
        Ok(now.note(change))
    }

    /// Undoes what was `made` before one refused, the last first; gives the error that says what has become of it.
    fn take_back(
        &self,
        state: &mut [Now],
        made: Vec<(usize, Change)>,
        all: usize,
        (refused, error): (usize, CaptureError),
    ) -> Error {
        if all == 1 {
            return error.into();
        }
        let refused = self.source(refused);
        let mut stuck = Vec::new();
        for (at, back) in made.into_iter().rev() {
            match self.change(&mut state[at], at, back) {
                // Whatever an ended source chooses by, it chooses no more.
                Ok(_) | Err(CaptureError::Ended) => {}
                Err(error) => stuck.push(format!("{} ({})", self.source(at), error_text(&error))),
            }
        }
        if stuck.is_empty() {
            let text = format!(
                "{refused} refuses the change, so nothing has changed at any of the {all} sources"
            );
            return Error::new(error).context(text);
        }
        anyhow!(
            "{refused} refuses the change ({}), and it cannot be taken back from {}: it holds there, and nowhere else; \
             ask again for what is to hold at all of them",
            error_text(&error),
            stuck.join(", ")
        )
    }
}

#[cfg(test)]
#[path = "served_tests.rs"]
mod tests;
