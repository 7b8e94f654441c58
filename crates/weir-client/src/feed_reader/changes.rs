//! Changes of the filter and the block list while frames are read.

use std::time::Duration;

use super::{FeedReader, Reading, State};
use crate::error::ClientError;
use crate::feed::OpenFeed;

impl Reading {
    fn change(
        &mut self,
        change: impl FnOnce(&OpenFeed) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let changed = change(&self.feed);
        self.pull.look_at_changes();
        // The feed is open again: the change was made in the rings to which the daemon had moved it.
        if self.feed.ended().is_none() {
            (self.retry_at, self.has_heard) = (None, false);
        }
        changed
    }
}

impl FeedReader {
    /// Sets another filter at the daemon; an empty one takes all frames. If others read the same rings, the feed moves
    /// to rings of its own. Frames that come during the move and that both filters take may come twice.
    ///
    /// # Errors
    /// The daemon's error; the filter has not changed then. A feed that is not open yet reports an invalid filter when
    /// it is opened.
    pub fn set_filter(&mut self, filter: &str) -> Result<(), ClientError> {
        if self.is_open() {
            self.open()?;
        }
        if let State::Open(reading) = &mut self.state {
            reading.change(|feed| feed.set_filter(filter))?;
        }
        filter.clone_into(&mut self.asked.filter);
        Ok(())
    }

    /// Blocks frames at the daemon by the entries of `add`, and unblocks those of `remove`, which are removed first.
    ///
    /// # Errors
    /// The daemon's error. Of a long list, a part may be in force then.
    pub fn block(&mut self, add: &[String], remove: &[String]) -> Result<(), ClientError> {
        self.open()?;
        match &mut self.state {
            State::Open(reading) => reading.change(|feed| feed.block(add, remove)),
            State::Closed(_) => Ok(()),
        }
    }

    /// Blocks frames at the daemon by these entries for `time`.
    ///
    /// # Errors
    /// As [`block`](FeedReader::block), or the time is too short or too long ([`limits`](crate::limits)).
    pub fn block_for(&mut self, add: &[String], time: Duration) -> Result<(), ClientError> {
        self.open()?;
        match &mut self.state {
            State::Open(reading) => reading.change(|feed| feed.block_for(add, time)),
            State::Closed(_) => Ok(()),
        }
    }
}
