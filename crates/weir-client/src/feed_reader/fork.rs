//! A reader in the child of a fork.

use weir_ring::wake::Sleeper;

use super::{FeedReader, State};
use crate::connection::Connection;
use crate::error::ClientError;
use crate::limits::LINES;
use crate::statistics::Past;

impl FeedReader {
    /// Connects again in the child of a fork, and changes nothing that belongs to the parent: the parent's connection
    /// has no thread in the child, and its sleeper is shared with the parent. Statistics begin anew with the child's
    /// own feed.
    pub(super) fn follow_fork(&mut self) -> Result<(), ClientError> {
        // Both calls can fail. Until both have succeeded, the reader is unchanged, and the next call tries again.
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
                    // The daemon counts frames from `from` on. This reader also reads the frames between the parent's
                    // position and `from`.
                    let each = feed.opened().from.iter().zip(&positions);
                    let each = each.map(|(from, position)| from.saturating_sub(*position));
                    between = each.fold(0, u64::saturating_add);
                    feed.begin = positions;
                }
                self.begin(feed)?;
                // The lengths of those frames are not known, so their bytes are not counted.
                let ledger = &mut self.past.ledger;
                (ledger.offered, ledger.captured) = (between, between);
            }
        }
        Ok(())
    }
}

/// The child of a fork drops nothing that belongs to its parent.
impl Drop for FeedReader {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            std::mem::forget(std::mem::replace(&mut self.state, State::Closed(None)));
            // This leaks a reference, so the connection is never dropped here: that would end the parent's connection.
            std::mem::forget(self.connection.clone());
        }
    }
}
