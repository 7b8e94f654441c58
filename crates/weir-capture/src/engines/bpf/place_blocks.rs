//! Changes to the block lists of feeds at the hook.

use weir_filter::block::{BlockList, Entry};

use super::shared::State;
use crate::error::{CaptureError, error_text};
use crate::feed::change::change_list;
use crate::kernel::rcu;

impl State {
    pub(super) fn empty_blocks(&mut self, place: usize) -> Result<(), CaptureError> {
        self.set_blocks(place, &BlockList::default())
    }

    fn set_blocks(&mut self, place: usize, wanted: &BlockList) -> Result<(), CaptureError> {
        let Some(blocks) = &mut self.blocks else { return Ok(()) };
        if place + 1 == self.places.len() {
            // The relay's place has no block list.
            return Ok(());
        }
        let set = blocks.set(self.lists[place] as usize, wanted);
        set.map_err(|error| CaptureError::Options(error_text(&error)))
    }

    /// Changes the block list of a feed at the hook.
    pub(super) fn block(
        &mut self,
        at: usize,
        remove: &[Entry],
        add: &[Entry],
    ) -> Result<(), CaptureError> {
        let at = self.lists[at] as usize;
        let blocks = self.blocks.as_mut().expect("set up for changes");
        let mut wanted = blocks.list(at).clone();
        change_list(&mut wanted, remove, add)
            .map_err(|full| CaptureError::Options(full.to_string()))?;
        let before = blocks.list(at).clone();
        if let Err(error) = blocks.set(at, &wanted) {
            // There is space for the old list: the removed entries have freed it.
            let error = error_text(&error);
            return Err(CaptureError::Options(match blocks.set(at, &before) {
                Ok(()) => format!("{error}; the list is as it was"),
                Err(undoing) => format!(
                    "{error}; and so was the way back ({}): more may be blocked than the list says, until the \
                     capture is started again",
                    error_text(&undoing)
                ),
            }));
        }
        // When this returns, all programs that used the old list have ended.
        rcu::synchronize()
    }
}
