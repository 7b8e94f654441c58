//! The demands of a subscriber on a source.

use std::collections::BTreeSet;

use weir_capture::{Change, Feed};
use weir_filter::block::Entry;

use crate::core::Wanted;

/// A feed, and the entries that it excludes.
#[derive(Clone, Debug, Default)]
pub struct Wants {
    /// Filter, snaplen, direction, sampling.
    pub feed: Feed,
    /// The block list.
    pub blocked: BTreeSet<Entry>,
    /// Subscriptions of different groups never share a feed, even if they select the same frames.
    pub group: usize,
}

impl From<Feed> for Wants {
    fn from(feed: Feed) -> Self {
        Wants { feed, ..Wants::default() }
    }
}

impl Wanted for Wants {
    type Change = Change;

    fn is_like(&self, other: &Wants) -> bool {
        self.group == other.group && self.feed.is_like(&other.feed) && self.blocked == other.blocked
    }

    fn with(&self, change: &Change) -> Wants {
        let mut changed = self.clone();
        match change {
            Change::Filter(filter) => changed.feed.filter.clone_from(filter),
            Change::Block { remove, add } => {
                remove.iter().for_each(|entry| _ = changed.blocked.remove(entry));
                changed.blocked.extend(add);
            }
        }
        changed
    }
}
