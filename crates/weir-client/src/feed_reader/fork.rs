//! A reader in the child of a fork.

use weir_ring::wake::Sleeper;

use super::{FeedReader, State};
use crate::connection::Connection;
use crate::error::ClientError;
use crate::limits::LINES;
use crate::statistics::Past;

impl FeedReader {
    /// In the child of a fork: nothing of the parent's is touched. Its connection has no thread here, and what both
    /// sleep on is the parent's. Statistics begin anew with the child's own feed.
    pub(super) fn follow_fork(&mut self) -> Result<(), ClientError> {
        // Both can fail; until then everything is the parent's, and the next call tries again.
        let (connection, sleeper) = (Connection::open(&self.socket)?, Sleeper::new(LINES)?);
        std::mem::forget(std::mem::replace(&mut self.connection, connection));
        self.pid = std::process::id();
        self.past = Past::default();
        match std::mem::replace(&mut self.state, State::Closed(Some(sleeper))) {
            State::Closed(sleeper) => std::mem::forget(sleeper),
            State::Open(old) => {
                let key = old.feed.key();
                let positions = old.pull.positions(key);
                std::mem::forget(old);
                let mut feed = self.connection.open_feed(&self.asked)?;
                let mut between = 0;
                if feed.opened().key == key && feed.rings().len() == positions.len() {
                    // The daemon counts from its `from` on, and this also reads frames that came
                    // between.
                    let each = feed.opened().from.iter().zip(&positions);
                    let each = each.map(|(from, position)| from.saturating_sub(*position));
                    between = each.fold(0, u64::saturating_add);
                    feed.begin = positions;
                }
                self.begin(feed)?;
                // How long those frames are nobody has counted.
                let ledger = &mut self.past.ledger;
                (ledger.offered, ledger.captured) = (between, between);
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
