//! Block lists of feeds whose frames pass through fan-outs, and changing them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_filter::block::{BlockList, Entry};

use super::update_queue::{Update, UpdateQueue};
use crate::error::CaptureError;
use crate::feed::change::change_list;

/// The block lists of a source's feeds, where user space looks them up. Any thread may change them; that of the source,
/// which frames may wait for, has no part in it but to take over what is ready.
#[derive(Clone)]
pub struct BlockLists {
    /// To each fan-out.
    queues: Arc<[Arc<UpdateQueue>]>,
    held: Arc<Mutex<Held>>,
}

pub(super) struct Held {
    /// By feed; all fan-outs share them.
    pub(super) lists: Vec<Arc<BlockList>>,
    /// Replaced lists that some fan-out may still hold. The last holder frees a list, and that must not be a thread that
    /// frames wait for.
    pub(super) past: Vec<Arc<BlockList>>,
}

impl BlockLists {
    /// All empty.
    pub(super) fn new(feeds: usize, queues: &[Arc<UpdateQueue>]) -> BlockLists {
        // Empty ones have no front yet, and all feeds can begin with the same.
        let held = Held { lists: vec![Arc::default(); feeds], past: Vec::new() };
        BlockLists { queues: queues.into(), held: Arc::new(Mutex::new(held)) }
    }

    /// Takes entries out of a feed's list and adds others: for every frame that comes after this returns. The new list is made
    /// here, beside the old one: of 65,536 entries that takes milliseconds.
    ///
    /// # Errors
    /// No room in the list; nothing has changed then.
    pub(crate) fn change(
        &self,
        feed: usize,
        remove: &[Entry],
        add: &[Entry],
    ) -> Result<(), CaptureError> {
        // Held throughout: of two changes at a time one would be lost.
        let mut held = self.held();
        let mut list = BlockList::clone(&held.lists[feed]);
        change_list(&mut list, remove, add)
            .map_err(|full| CaptureError::Options(full.to_string()))?;
        // A front is for those who block something.
        let new = Arc::new(if list.is_empty() { BlockList::default() } else { list });
        for updates in &*self.queues {
            updates.post(Update::Block(feed, Arc::clone(&new)));
        }
        let old = std::mem::replace(&mut held.lists[feed], new);
        held.past.push(old);
        // Fans that have had frames since hold newer ones.
        held.past.retain(|list| Arc::strong_count(list) > 1);
        Ok(())
    }

    /// Whole whoever panicked while holding it: a list is put in its place ready.
    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
