//! Another filter, or block list, while frames are read.

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
        // The daemon had moved it, and it is read there by now.
        if self.feed.ended().is_none() {
            (self.retry_at, self.has_heard) = (None, false);
        }
        changed
    }
}

impl FeedReader {
    /// Sets another filter at the daemon from here on; empty takes all. If others read the same rings, the feed moves
    /// to rings of its own: frames that come meanwhile and that both filters take may come twice.
    ///
    /// # Errors
    /// The daemon's error; nothing has changed then. A feed that is not open yet takes it at its opening.
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

    /// Blocks frames at the daemon by these entries, and unblocks others: first those that are removed.
    ///
    /// # Errors
    /// The daemon's error; of a long list a part may be in force then.
    pub fn block(&mut self, add: &[String], remove: &[String]) -> Result<(), ClientError> {
        self.open()?;
        match &mut self.state {
            State::Open(reading) => reading.change(|feed| feed.block(add, remove)),
            State::Closed(_) => Ok(()),
        }
    }

    /// Blocks frames at the daemon by these entries for this time, and then no more.
    ///
    /// # Errors
    /// As [`block`](FeedReader::block), and a time that is too short or too long ([`limits`](crate::limits)).
    pub fn block_for(&mut self, add: &[String], time: Duration) -> Result<(), ClientError> {
        self.open()?;
        match &mut self.state {
            State::Open(reading) => reading.change(|feed| feed.block_for(add, time)),
            State::Closed(_) => Ok(()),
        }
    }
}
