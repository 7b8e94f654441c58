//! Block lists of clients' feeds: of one by its number, and of all of a name.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Instant;

use weir_client::protocol::{BlockChanged, Blocked, NO_FEED, block_time, is_feed_name};
use weir_filter::block::{ENTRIES_MAX, Entry, EntryError};
use weir_plug::Credentials;
use weir_plug::message::RpcError;
use weir_probe::timed_list::Undo;
use weir_probe::{ListChange, ProbeError, SubscriptionId};

use crate::daemon::{Daemon, refused};
use crate::rights;
use crate::slots::Claim;

/// Understands a change that a client asks for. The time begins now.
///
/// # Errors
/// What is no entry, or no time.
pub fn read_change(
    add: &[String],
    remove: &[String],
    expires_ms: Option<u64>,
) -> Result<ListChange, RpcError> {
    let entries = |texts: &[String]| {
        let parsed = texts.iter().map(|text| text.parse());
        let parsed = parsed.collect::<Result<Vec<Entry>, EntryError>>();
        parsed.map_err(|error| RpcError::params(error.to_string()))
    };
    let time = expires_ms.map(block_time).transpose().map_err(RpcError::params)?;
    let end = time.map(|time| Instant::now() + time);
    Ok(ListChange { remove: entries(remove)?, add: entries(add)?, end })
}

/// A feed that others change by its name.
struct Named {
    source: String,
    subscription: SubscriptionId,
    /// The probe's number of its rings.
    key: u64,
}

impl Daemon {
    /// Changes the block list of a feed that nobody else reads.
    pub(crate) fn block(
        &self,
        subscription: SubscriptionId,
        change: &ListChange,
    ) -> Result<Undo, RpcError> {
        self.lists.change(subscription, change).map_err(refused)
    }

    /// Changes the block lists of all feeds of a name that this user may change, or none. One that ends meanwhile is
    /// left out.
    pub(crate) fn block_named(
        &self,
        who: &Credentials,
        name: &str,
        change: &ListChange,
    ) -> Result<BlockChanged, RpcError> {
        let mut made = Vec::new();
        let changes_nothing = change.add.is_empty() && change.remove.is_empty();
        for feed in self.named(who, name)? {
            if changes_nothing {
                made.push((feed, Undo::default()));
                continue;
            }
            let handing = self.handing(&feed.source);
            let _alone = handing.write().unwrap_or_else(PoisonError::into_inner);
            match self.lists.change(feed.subscription, change) {
                Ok(undo) => made.push((feed, undo)),
                Err(ProbeError::Unknown | ProbeError::Ended) => {}
                Err(error) => {
                    for (feed, undo) in made.into_iter().rev() {
                        // Less than it had is always taken; more again may not be. The list says what it is.
                        let _ = self.lists.take_back(feed.subscription, undo);
                    }
                    return Err(refused(error));
                }
            }
        }
        if made.is_empty() {
            return Err(no_feed(name));
        }
        let entries = made.iter().map(|(feed, _)| self.lists.count(feed.subscription)).max();
        Ok(BlockChanged {
            feeds: made.len(),
            changed: made.iter().map(|(_, undo)| undo.entries()).max().unwrap_or_default(),
            entries: entries.unwrap_or_default(),
            keys: made.iter().map(|(feed, _)| feed.key).collect(),
        })
    }

    /// What the feeds of a name block.
    pub(crate) fn blocked_named(&self, who: &Credentials, name: &str) -> Result<Blocked, RpcError> {
        let feeds = self.named(who, name)?;
        // Of each entry: in how many feeds, and its last end.
        let mut union: BTreeMap<Entry, (usize, Option<Instant>)> = BTreeMap::new();
        let mut omitted = 0;
        for feed in &feeds {
            for (entry, end) in self.lists.of(feed.subscription) {
                let is_full = union.len() >= ENTRIES_MAX;
                match union.get_mut(&entry) {
                    Some((count, last)) => {
                        *count += 1;
                        *last = last.zip(end).map(|(one, other)| one.max(other));
                    }
                    None if is_full => omitted += 1,
                    None => _ = union.insert(entry, (1, end)),
                }
            }
        }
        let now = Instant::now();
        let mut blocked = Blocked { feeds: feeds.len(), omitted, ..Blocked::default() };
        for (entry, (count, end)) in union {
            let text = entry.to_string();
            if let Some(end) = end {
                let left = end.saturating_duration_since(now).as_millis();
                blocked.left_ms.insert(text.clone(), u64::try_from(left).unwrap_or(u64::MAX));
            }
            match count == feeds.len() {
                true => blocked.blocked.push(text),
                false => _ = blocked.partly.insert(text, count),
            }
        }
        Ok(blocked)
    }

    /// The feeds of this name that are this user's; of any user's, if it manages the daemon. Those that wait for their
    /// client to come for them are among them.
    fn named(&self, who: &Credentials, name: &str) -> Result<Vec<Named>, RpcError> {
        let sees_all = rights::manages(who);
        let is_own = |other: &Credentials| sees_all || rights::is_same_user(who, other);
        let is_named = |own: &Option<String>| own.as_deref() == Some(name);
        let mut claims = self.moved.claims(|feed| is_named(&feed.asked.name) && is_own(&feed.who));
        for reader in self.board.readers() {
            if is_named(&reader.asked.name) && is_own(&reader.who) && !reader.is_closed() {
                claims.push((reader.source.clone(), reader.claim));
            }
        }
        let feed = |(source, claim): (String, Claim)| {
            let key = self.probe.feed_of(claim.subscription)?.0.number();
            Some(Named { source, subscription: claim.subscription, key })
        };
        // Of a source that has ended nothing comes that could be blocked.
        let feeds: Vec<Named> = claims.into_iter().filter_map(feed).collect();
        if feeds.is_empty() { Err(no_feed(name)) } else { Ok(feeds) }
    }
}

/// The same answer for what is not there and for what is another user's.
fn no_feed(name: &str) -> RpcError {
    let name = if is_feed_name(name) { name } else { "?" };
    RpcError::new(
        NO_FEED,
        format!("you have no feed named '{name}'; `weir status` shows those that there are"),
    )
}
