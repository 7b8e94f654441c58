//! Changes to a running feed.

use std::sync::Arc;

use weir_filter::block::{BlockList, Entry, Full};

use crate::feed::Filter;

/// A change to a running feed.
#[derive(Clone, Debug)]
pub enum Change {
    /// Its filter. Every frame is judged by the old one or by the new one.
    Filter(Option<Arc<Filter>>),
    /// Its block list: entries that leave it, and entries that come. Not one changes if any cannot.
    Block {
        /// To be blocked no more; those that are not there make no difference.
        remove: Vec<Entry>,
        /// To be blocked, too.
        add: Vec<Entry>,
    },
}

/// A block list with these changes; it is as it was if there is no room for them.
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
