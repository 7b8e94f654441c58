//! A reader in the child of a fork.

use weir_ring::wake::Sleeper;

use super::{FeedReader, State};
use crate::connection::Connection;
use crate::error::ClientError;
use crate::limits::LINES;
use crate::statistics::add;

impl FeedReader {
    /// In the child of a fork: nothing of the parent's is touched. Its connection has no thread here, and what both
    /// sleep on is the parent's.
    pub(super) fn follow_fork(&mut self) -> Result<(), ClientError> {
        let connection = Connection::open(&self.socket)?;
        std::mem::forget(std::mem::replace(&mut self.connection, connection));
        self.pid = std::process::id();
        let closed = State::Closed(Some(Sleeper::new(LINES)?));
        match std::mem::replace(&mut self.state, closed) {
            State::Closed(sleeper) => std::mem::forget(sleeper),
            State::Open(old) => {
                let key = old.feed.key();
                let positions = old.pull.positions(key);
                self.past.delivered = add(self.past.delivered, old.pull.delivered());
                std::mem::forget(old);
                let mut feed = self.connection.open_feed(&self.asked)?;
                if feed.opened().key == key && feed.rings().len() == positions.len() {
                    feed.opened.from = positions;
                }
                self.begin(feed)?;
            }
        }
        Ok(())
    }
}

/// A child of a fork drops nothing of its parent's.
impl Drop for FeedReader {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            std::mem::forget(std::mem::replace(&mut self.state, State::Closed(None)));
            // One more that is never dropped: so none ever ends the parent's connection.
            std::mem::forget(self.connection.clone());
        }
    }
}
