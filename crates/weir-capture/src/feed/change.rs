//! Changes to a running feed.

use std::sync::Arc;

use weir_filter::block::{BlockList, Entry, Full};

use crate::feed::Filter;

/// A change to a running feed.
#[derive(Clone, Debug)]
pub enum Change {
    /// Replaces the filter. Every frame is decided by either the old or the new filter.
    Filter(Option<Arc<Filter>>),
    /// Changes the block list. Either all of these changes are made or none.
    Block {
        /// Entries to remove. Those that are not in the list are ignored.
        remove: Vec<Entry>,
        /// Entries to add.
        add: Vec<Entry>,
    },
}

/// Makes these changes to a block list. If it is full, the list is unchanged.
pub(crate) fn change_list(
    list: &mut BlockList,
    remove: &[Entry],
    add: &[Entry],
) -> Result<(), Full> {
    let gone: Vec<Entry> = remove.iter().filter(|entry| list.remove(entry)).copied().collect();
    let mut come = Vec::new();
    for entry in add {
        match list.add(*entry) {
            Ok(true) => come.push(*entry),
            Ok(false) => {}
            Err(full) => {
                come.iter().for_each(|entry| _ = list.remove(entry));
                for entry in gone {
                    list.add(entry).expect("it was there before");
                }
                return Err(full);
            }
        }
    }
    Ok(())
}
