//! Changes to a running capture, and their results.
//!
//! A change applies to all feeds with the same name, one of each source: to all of them or to none. If one feed refuses
//! the change, it is undone at the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Error, Result, anyhow, bail};
use serde_json::{Value, json};
use weir_capture::{CaptureError, Change, Filter};
use weir_client::protocol::block_time;
use weir_filter::block::Entry;
use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_probe::timed_list::{End, Undo};
use weir_probe::{BlockLists, ListChange, Probe, ProbeError};
use weir_store::recorder::look_back::Asked;

use super::rpc::{Block, Method, SetFilter};
use crate::error_words::error_text;
use crate::feeds::compile;
use crate::journal::Journal;
use crate::report::counts;
use crate::so_far::SoFar;
use crate::sources::{InForce, Subscribed, Subscriptions};

/// The feeds of a capture.
pub struct Served {
    probe: Arc<Probe>,
    journal: Arc<Journal>,
    subscriptions: Arc<Subscriptions>,
    so_far: Arc<SoFar>,
    lists: BlockLists,
    /// Flags of a recorder that waits for a trigger.
    asked: Option<Asked>,
    /// The state of each feed. The lock is held during a change, so changes do not overlap.
    state: Mutex<Vec<Now>>,
}

/// The current state of a feed.
struct Now {
    in_force: InForce,
    /// The source of the feed has ended, so a change has no effect.
    has_ended: bool,
}

/// A change of one feed.
enum FeedChange {
    Filter(Option<Arc<Filter>>),
    Block(ListChange),
    /// Restores the former state of the feed's block list.
    Unblock(Undo),
}

impl Served {
    pub fn new(
        probe: Arc<Probe>,
        journal: Arc<Journal>,
        subscriptions: Arc<Subscriptions>,
        so_far: Arc<SoFar>,
        asked: Option<Asked>,
    ) -> Served {
        let (changer, feeds) = (Arc::clone(&probe), Arc::clone(&subscriptions));
        let lists = BlockLists::new(move |subscription, change| {
            changer.change(subscription, change)?;
            feeds.look(&changer);
            Ok(())
        });
        let now = |feed: &Subscribed| Now {
            in_force: InForce { filter: feed.takes.filter.clone(), changes: 0 },
            has_ended: false,
        };
        let state = Mutex::new(subscriptions.feeds.iter().map(now).collect());
        Served { probe, journal, subscriptions, so_far, lists, asked, state }
    }

    pub fn in_force(&self) -> Vec<InForce> {
        self.state().iter().map(|now| now.in_force.clone()).collect()
    }

    pub fn carry_out(&self, method: Method) -> Result<Value> {
        match method {
            Method::SetFilter(SetFilter { feed, filter }) => self.set_filter(&feed, &filter),
            Method::Block(block) => self.block(block),
            Method::Ledgers(_) => self.ledgers(),
            Method::Status(_) => self.status(),
            Method::Trigger(_) => self.trigger(),
        }
    }

    fn trigger(&self) -> Result<Value> {
        let Some(asked) = &self.asked else {
            bail!(
                "this capture waits for no trigger; it would with --write DIR/ --on-trigger signal"
            );
        };
        asked.command.store(true, Ordering::Release);
        Ok(json!({ "triggered": true }))
    }

    /// Returns the current report, as `--json-every` prints it.
    fn status(&self) -> Result<Value> {
        if !self.so_far.has_begun() {
            bail!(
                "this capture has not begun yet: a source is still opened, or an output waits for its reader"
            );
        }
        let in_force = self.in_force();
        Ok(serde_json::from_str(&self.so_far.result(in_force).report().json())?)
    }

    /// Returns the current ledgers. While frames come, the counts of a ledger are not read at one instant.
    fn ledgers(&self) -> Result<Value> {
        self.so_far.count()?;
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
        // The filter is compiled for all feeds before any feed is changed.
        let compiled = own.iter().map(|&at| Ok((at, compile(text, self.link_type(at))?)));
        let compiled: BTreeMap<_, _> = compiled.collect::<Result<_>>()?;
        let change = |at| FeedChange::Filter(compiled[&at].clone());
        let made = self.change_all(&mut self.state(), &own, change)?;
        Ok(json!({ "feeds": made.len(), "filter": text }))
    }

    fn block(&self, Block { feed, add, remove, expires_ms }: Block) -> Result<Value> {
        let own = self.named(&feed)?;
        if let Some(&other) = own.iter().find(|&&at| self.link_type(at) != LINKTYPE_ETHERNET) {
            let source = self.source(other);
            bail!("block lists are of Ethernet frames only, and {source} has another link type");
        }
        let parse = |texts: Vec<String>| -> Result<Vec<Entry>> {
            texts.iter().map(|text| Ok(text.parse()?)).collect()
        };
        let time = expires_ms.map(block_time).transpose().map_err(Error::msg)?;
        let end = time.map(|time| Instant::now() + time);
        let change = ListChange { remove: parse(remove)?, add: parse(add)?, end };
        let mut state = self.state();
        if change.add.is_empty() && change.remove.is_empty() {
            return Ok(self.blocked(&state, &own, own.len()));
        }
        let made = self.change_all(&mut state, &own, |_| FeedChange::Block(change.clone()))?;
        let touched = made.iter().map(|(_, back)| match back {
            FeedChange::Unblock(undo) => undo.entries(),
            _ => 0,
        });
        let mut result = self.blocked(&state, &own, made.len());
        result["changed"] = json!(touched.max());
        Ok(result)
    }

    /// Returns the entries that these feeds block, as JSON.
    ///
    /// `blocked` has the entries that all of these feeds block. If a change could not be undone, so that the lists
    /// differ, `sources` has the list of each source. `left_ms` has the remaining time of entries that expire.
    fn blocked(&self, state: &[Now], own: &[usize], changed: usize) -> Value {
        let now = Instant::now();
        let alive: Vec<usize> = own.iter().copied().filter(|&at| !state[at].has_ended).collect();
        let shown = if alive.is_empty() { own } else { &alive };
        let list_of = |at: usize| {
            let mut list = self.lists.of(self.feeds()[at].subscription);
            // Expired entries are removed from one list after the other, so some lists may still have them.
            list.retain(|_, end| end.is_none_or(|end| end > now));
            list
        };
        let lists: Vec<(usize, BTreeMap<Entry, End>)> =
            shown.iter().map(|&at| (at, list_of(at))).collect();
        let texts = |list: &BTreeMap<Entry, End>| {
            list.keys().map(Entry::to_string).collect::<Vec<String>>()
        };
        let mut common = lists[0].1.clone();
        common.retain(|entry, _| lists.iter().all(|(_, list)| list.contains_key(entry)));
        let mut result = json!({ "feeds": changed, "blocked": texts(&common) });
        let left = |(entry, end): (&Entry, &End)| {
            let left = (*end)?.saturating_duration_since(now).as_millis();
            Some((entry.to_string(), u64::try_from(left).unwrap_or(u64::MAX)))
        };
        let left: BTreeMap<String, u64> = common.iter().filter_map(left).collect();
        if !left.is_empty() {
            result["left_ms"] = json!(left);
        }
        if lists.iter().any(|(_, list)| list.len() != common.len()) {
            let of_one = |(at, list): &(usize, BTreeMap<Entry, End>)| -> Value {
                json!({ "source": self.source(*at), "blocked": texts(list) })
            };
            result["sources"] = lists.iter().map(of_one).collect();
        }
        result
    }

    /// Returns the name of the feed's source and part, as the user wrote it.
    fn source(&self, at: usize) -> String {
        self.subscriptions.name_of(&self.feeds()[at])
    }

    /// Returns the indexes of the feeds with this name, one of each source. It is an error if one of them shares its
    /// rings with a feed of another name.
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

    /// Returns the name of another feed that reads the same rings.
    fn sharing(&self, feed: &Subscribed) -> Option<&str> {
        let is_same = |other: &&Subscribed| other.output == feed.output && other.name != feed.name;
        self.feeds().iter().find(is_same).map(|other| other.name.as_str())
    }

    /// Changes all of these feeds, except those of ended sources, or none. Returns the changed feeds, each with the
    /// change that undoes this one.
    fn change_all(
        &self,
        state: &mut [Now],
        own: &[usize],
        change: impl Fn(usize) -> FeedChange,
    ) -> Result<Vec<(usize, FeedChange)>> {
        let mut made = Vec::new();
        for &at in own {
            match self.change(&mut state[at], at, change(at)) {
                Ok(back) => made.push((at, back)),
                Err(CaptureError::Ended) => {}
                Err(error) => return Err(self.take_back(state, made, own.len(), (at, error))),
            }
        }
        if made.is_empty() { Err(CaptureError::Ended.into()) } else { Ok(made) }
    }

    /// Changes one feed, and returns the change that undoes this one.
    fn change(
        &self,
        now: &mut Now,
        at: usize,
        change: FeedChange,
    ) -> Result<FeedChange, CaptureError> {
        if now.has_ended {
            return Err(CaptureError::Ended);
        }
        let subscription = self.feeds()[at].subscription;
        let changed = match change {
            FeedChange::Filter(filter) => {
                let changed = self.probe.change(subscription, Change::Filter(filter.clone()));
                changed.map(|()| {
                    self.subscriptions.look(&self.probe);
                    now.in_force.changes += 1;
                    FeedChange::Filter(std::mem::replace(&mut now.in_force.filter, filter))
                })
            }
            FeedChange::Block(change) => {
                self.lists.change(subscription, &change).map(FeedChange::Unblock)
            }
            FeedChange::Unblock(undo) => {
                self.lists.take_back(subscription, undo).map(FeedChange::Unblock)
            }
        };
        let changed = changed.map_err(|error| match error {
            ProbeError::Capture(error) => error,
            // All other errors of the probe mean that the source has ended.
            _ => CaptureError::Ended,
        });
        now.has_ended = matches!(changed, Err(CaptureError::Ended));
        changed
    }

    /// Undoes the changes in `made`, the last first, after one source has refused its change. Returns the error to
    /// report.
    fn take_back(
        &self,
        state: &mut [Now],
        made: Vec<(usize, FeedChange)>,
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
                // A remaining filter or list of an ended source has no effect.
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
