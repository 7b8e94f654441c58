//! What a capture lets others change, and what has come of that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};
use serde_json::{Value, json};
use weir_capture::{CaptureError, Change, Filter, Remote};
use weir_filter::block::Entry;
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use super::rpc::{Block, Method, SetFilter};
use crate::feeds::compile;
use crate::sources::Subscribed;

/// The feeds of a capture.
pub struct Served {
    remote: Remote,
    /// With their link types.
    feeds: Vec<(Subscribed, u16)>,
    /// Held while anything changes: two changes at a time would not know of each other.
    state: Mutex<State>,
}

struct State {
    /// By feed.
    in_force: Vec<InForce>,
    /// The block lists that were asked for, by feed's name.
    lists: BTreeMap<String, BTreeSet<Entry>>,
}

/// What a feed chooses by now.
#[derive(Clone, Debug)]
pub struct InForce {
    /// Its filter; `None` takes all.
    pub filter: Option<Arc<Filter>>,
    /// How often that was changed.
    pub changes: u64,
}

impl Served {
    pub fn new(remote: Remote, feeds: Vec<(Subscribed, u16)>) -> Served {
        let at_first = |(feed, _): &(Subscribed, u16)| InForce {
            filter: feed.takes.filter.clone(),
            changes: 0,
        };
        let in_force = feeds.iter().map(at_first).collect();
        let state = Mutex::new(State { in_force, lists: BTreeMap::new() });
        Served { remote, feeds, state }
    }

    pub fn in_force(&self) -> Vec<InForce> {
        self.state().in_force.clone()
    }

    pub fn carry_out(&self, method: Method) -> Result<Value> {
        match method {
            Method::SetFilter(SetFilter { feed, filter }) => self.set_filter(&feed, &filter),
            Method::Block(block) => self.block(block),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_filter(&self, name: &str, text: &str) -> Result<Value> {
        let own = self.named(name)?;
        // All of them compile before any changes.
        let compiled = own.iter().map(|&at| Ok((at, compile(text, self.feeds[at].1)?)));
        let compiled: BTreeMap<_, _> = compiled.collect::<Result<_>>()?;
        let mut state = self.state();
        let refusals = self.change_all(&own, |at| Change::Filter(compiled[&at].clone()));
        for (at, filter) in compiled {
            if !refusals.iter().any(|(refused, _)| *refused == at) {
                let now = &mut state.in_force[at];
                now.filter = filter;
                now.changes += 1;
            }
        }
        self.said(&own, refusals)?;
        Ok(json!({ "feeds": own.len(), "filter": text }))
    }

    fn block(&self, Block { feed, add, remove }: Block) -> Result<Value> {
        let own = self.named(&feed)?;
        if own.iter().any(|&at| self.feeds[at].1 != LINKTYPE_ETHERNET) {
            bail!("block lists are of Ethernet frames only, and these have another link type");
        }
        let parse = |texts: Vec<String>| -> Result<Vec<Entry>> {
            texts.iter().map(|text| Ok(text.parse()?)).collect()
        };
        let (add, remove) = (parse(add)?, parse(remove)?);
        let mut state = self.state();
        if !add.is_empty() || !remove.is_empty() {
            let change = |_| Change::Block { remove: remove.clone(), add: add.clone() };
            let refusals = self.change_all(&own, change);
            self.said(&own, refusals)?;
        }
        let list = state.lists.entry(feed).or_default();
        remove.iter().for_each(|entry| _ = list.remove(entry));
        list.extend(add);
        let list: Vec<String> = list.iter().map(Entry::to_string).collect();
        Ok(json!({ "feeds": own.len(), "blocked": list }))
    }

    /// The feeds of this name: one of each source. None of them shares its rings with one of another name.
    fn named(&self, name: &str) -> Result<Vec<usize>> {
        let is_own = |(_, (feed, _)): &(usize, &(Subscribed, u16))| feed.name == name;
        let own: Vec<usize> =
            self.feeds.iter().enumerate().filter(is_own).map(|(at, _)| at).collect();
        if own.is_empty() {
            let names: BTreeSet<_> =
                self.feeds.iter().map(|(feed, _)| feed.name.as_str()).collect();
            let names: Vec<_> = names.into_iter().collect();
            match names[..] {
                [""] => bail!(
                    "there is no feed '{name}'; the one that there is has no name, so leave --feed out"
                ),
                _ => bail!("there is no feed '{name}'; there are: {}", names.join(", ")),
            }
        }
        if let Some(other) = own.iter().find_map(|&at| self.sharing(&self.feeds[at].0)) {
            bail!(
                "feed '{name}' shares its rings with '{other}', which takes the same; give the two filters that \
                 differ at the start to change one"
            );
        }
        Ok(own)
    }

    /// Another feed that reads the same rings.
    fn sharing(&self, feed: &Subscribed) -> Option<&str> {
        let is_same = |other: &Subscribed| {
            (other.source, other.feed) == (feed.source, feed.feed) && other.name != feed.name
        };
        self.feeds.iter().find(|(other, _)| is_same(other)).map(|(other, _)| other.name.as_str())
    }

    /// Changes each of the feeds, also behind one that refuses; gives those that did, and why.
    fn change_all(
        &self,
        feeds: &[usize],
        change: impl Fn(usize) -> Change,
    ) -> Vec<(usize, CaptureError)> {
        let change_one = |&at: &usize| {
            let Subscribed { source, feed, .. } = self.feeds[at].0;
            Some((at, self.remote.change(source, feed, change(at)).err()?))
        };
        feeds.iter().filter_map(change_one).collect()
    }

    /// An error if any of them refused; it says how many did not.
    fn said(&self, feeds: &[usize], mut refusals: Vec<(usize, CaptureError)>) -> Result<()> {
        let changed = feeds.len() - refusals.len();
        match (refusals.pop(), changed) {
            (None, _) => Ok(()),
            (Some((_, error)), 0) => Err(error.into()),
            (Some((_, error)), changed) => Err(anyhow::Error::new(error).context(format!(
                "{changed} of {} sources have changed, and the others have not",
                feeds.len()
            ))),
        }
    }
}
