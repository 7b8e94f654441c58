//! Block lists of clients' feeds: of one feed by its number, and of all feeds of a name.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Instant;

use weir_capture::error::error_text;
use weir_client::protocol::{BlockChanged, Blocked, NO_FEED, block_time, is_feed_name};
use weir_filter::block::{ENTRIES_MAX, Entry, EntryError};
use weir_plug::Who;
use weir_plug::message::RpcError;
use weir_probe::timed_list::Undo;
use weir_probe::{ListChange, ProbeError, SubscriptionId};

use crate::daemon::Daemon;
use crate::limits::TOLD_ENTRIES_MAX;
use crate::refusal::refused;
use crate::rights;
use crate::slots::Claim;

/// Parses a change that a client requests. The time of the entries begins now.
///
/// # Errors
/// A text is not an entry, or the time is invalid.
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

/// A feed that is changed by its name.
struct Named {
    source: String,
    subscription: SubscriptionId,
    /// The probe's number of the feed's rings.
    key: u64,
}

impl Named {
    /// Returns the feed's name for error texts.
    fn title(&self) -> String {
        format!("feed {} of source '{}'", self.key, self.source)
    }
}

/// Returns a text with the first of some entries, and the number of the others.
fn told<'a>(mut entries: impl Iterator<Item = &'a Entry>) -> String {
    let first: Vec<String> =
        entries.by_ref().take(TOLD_ENTRIES_MAX).map(Entry::to_string).collect();
    let first = first.join(", ");
    match entries.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

impl Daemon {
    /// Changes the block list of a feed that has no other reader.
    pub(crate) fn block(
        &self,
        subscription: SubscriptionId,
        change: &ListChange,
    ) -> Result<Undo, RpcError> {
        self.lists.change(subscription, change).map_err(refused)
    }

    /// Changes the block lists of all feeds with a name that this user may change, or of none. A feed that ends during
    /// the change is skipped.
    pub(crate) fn block_named(
        &self,
        who: &Who,
        name: &str,
        change: &ListChange,
    ) -> Result<BlockChanged, RpcError> {
        let mut made = Vec::new();
        let changes_nothing = change.add.is_empty() && change.remove.is_empty();
        let feeds = self.named(who, name)?;
        let count = feeds.len();
        for feed in feeds {
            if changes_nothing {
                made.push((feed, Undo::default()));
                continue;
            }
            let changed = self.alone(&feed, || self.lists.change(feed.subscription, change));
            match changed {
                Ok(undo) => made.push((feed, undo)),
                Err(ProbeError::Unknown | ProbeError::Ended) => {}
                Err(error) if count == 1 => return Err(refused(error)),
                Err(error) => {
                    let why =
                        format!("{} refuses the change ({})", feed.title(), error_text(&error));
                    return Err(self.take_back(name, made, count, &why));
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

    /// Runs `carry_out` while no other thread changes the filters of the rings of the feed's source, or opens a feed on
    /// them.
    fn alone<T>(&self, feed: &Named, carry_out: impl FnOnce() -> T) -> T {
        let handing = self.handing(&feed.source);
        let _alone = handing.write().unwrap_or_else(PoisonError::into_inner);
        carry_out()
    }

    /// Undoes the changes in `made` after one of the feeds has refused the change, the last one first. Returns the
    /// error that describes the result.
    fn take_back(&self, name: &str, made: Vec<(Named, Undo)>, count: usize, why: &str) -> RpcError {
        let mut kept = Vec::new();
        for (feed, undo) in made.into_iter().rev() {
            let touched = told(undo.touched());
            let undone = self.alone(&feed, || self.lists.take_back(feed.subscription, undo));
            match undone {
                // If the feed has ended, it blocks nothing.
                Ok(_) | Err(ProbeError::Unknown | ProbeError::Ended) => {}
                Err(error) => {
                    kept.push(format!("{} ({}) of {touched}", feed.title(), error_text(&error)));
                }
            }
        }
        if kept.is_empty() {
            return RpcError::refused(format!(
                "{why}, so nothing has changed at any of the {count} feeds"
            ));
        }
        // The remedy comes first, because a long text is cut.
        RpcError::refused(format!(
            "{why}, and it cannot be taken back everywhere; `weir block --feed {name}` shows what only some of the \
             feeds block: add or remove that again, as it is to be at all of them. The change is kept at {}",
            kept.join("; at ")
        ))
    }

    /// Returns the entries that the feeds with a name block.
    pub(crate) fn blocked_named(&self, who: &Who, name: &str) -> Result<Blocked, RpcError> {
        let feeds = self.named(who, name)?;
        // For each entry: the number of feeds that block it, and the latest end.
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

    /// Returns the feeds with this name that belong to this user; for a user who manages the daemon, those of any user.
    /// Feeds that wait for their client to open them again are included.
    fn named(&self, who: &Who, name: &str) -> Result<Vec<Named>, RpcError> {
        let sees_all = rights::manages(who);
        let is_own = |other: &Who| sees_all || rights::is_same_user(who, other);
        let is_named = |own: &Option<String>| own.as_deref() == Some(name);
        let moved = self.moved.claims(|feed| is_named(&feed.asked.name) && is_own(&feed.who));
        let mut claims: Vec<_> =
            moved.into_iter().map(|(source, claim)| (source, claim, None)).collect();
        for reader in self.board.readers() {
            if is_named(&reader.asked.name) && is_own(&reader.who) && !reader.is_closed() {
                // A guest has its own numbers for its feeds.
                let key = matches!(who, Who::Guest(_)).then(|| reader.key());
                claims.push((reader.source.clone(), reader.claim, key));
            }
        }
        let feed = |(source, claim, key): (String, Claim, Option<u64>)| {
            let rings = self.probe.feed_of(claim.subscription)?.0;
            let key = key.unwrap_or(rings.number());
            Some(Named { source, subscription: claim.subscription, key })
        };
        // The feed of a source that has ended has no frames to block.
        let feeds: Vec<Named> = claims.into_iter().filter_map(feed).collect();
        if feeds.is_empty() { Err(no_feed(name)) } else { Ok(feeds) }
    }
}

/// Returns the error for a feed that does not exist or that belongs to another user: it is the same for both.
fn no_feed(name: &str) -> RpcError {
    let name = if is_feed_name(name) { name } else { "?" };
    RpcError::new(
        NO_FEED,
        format!("you have no feed named '{name}'; `weir status` shows those that there are"),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use weir_capture::engines::auto::EngineRequest;
    use weir_capture::engines::declaration::Target;
    use weir_capture::engines::of_generated;
    use weir_capture::{CaptureError, Feed, Setup};
    use weir_client::protocol::Open;
    use weir_plug::Credentials;
    use weir_probe::{BlockLists, SourceSpec};

    use super::*;
    use crate::config::Config;
    use crate::moved::MovedFeed;
    use crate::resolved::Resolved;

    /// A daemon with a feed named `ids` at each of the sources `a` and `b`. The answers of their
    /// lists are `answers`.
    fn daemon(who: &Who, answers: &'static [bool]) -> Daemon {
        let target = || Target::Text("rate=1kpps".into());
        let request = || EngineRequest { engine: Some(of_generated()), ..EngineRequest::default() };
        let resolve = move |_: &str, _: &_| {
            Ok(Resolved { target: target(), request: request(), owner_finder: None })
        };
        let config = Config::parse("[sources.a]\nsource = 'gen:'\n[sources.b]\nsource = 'gen:'\n");
        let mut daemon = Daemon::new(config.unwrap(), resolve, |_| ()).unwrap();
        for name in ["a", "b"] {
            let spec = SourceSpec::new(name, move |feeds| {
                request().open(&target(), &Setup { feeds, may_change: true, ..Setup::default() })
            });
            let (source, own) = daemon.probe.open(spec, vec![Feed::default().into()]).unwrap();
            let claim = Claim { source, subscription: own[0], is_first: true };
            let asked = Open { source: name.into(), name: Some("ids".into()), ..Open::default() };
            daemon.moved.add(MovedFeed::new(who.clone(), asked, claim));
        }
        let answers = Mutex::new(answers.iter());
        daemon.lists = BlockLists::new(move |_, _| match answers.lock().unwrap().next() {
            Some(false) => Err(CaptureError::Options("no room".into()).into()),
            _ => Ok(()),
        });
        daemon
    }

    #[test]
    fn a_change_that_cannot_be_taken_back_is_told_with_its_feed_and_its_entries() {
        let who = Who::Process(Credentials { uid: 1, ..Credentials::default() });
        let add: Vec<String> = (1..=5).map(|last| format!("10.0.0.{last}")).collect();
        let change = read_change(&add, &[], None).unwrap();
        let said = |answers| {
            let daemon = daemon(&who, answers);
            daemon.block_named(&who, "ids", &change).unwrap_err().message
        };
        let taken_back = said(&[true, false, true]);
        for words in ["of source 'b' refuses", "no room", "nothing has changed at any of the 2"] {
            assert!(taken_back.contains(words), "{taken_back}");
        }
        let kept = said(&[true, false, false]);
        for words in [
            "of source 'b' refuses the change (",
            "`weir block --feed ids`",
            "of source 'a' (",
            "10.0.0.1, 10.0.0.2, 10.0.0.3 and 2 more",
        ] {
            assert!(kept.contains(words), "{words}: {kept}");
        }
    }
}
