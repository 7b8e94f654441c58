//! An open feed: what its consumer reads, and how it is changed and closed.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde_json::Value;
use weir_consumer::{FeedChange, FrameSource, JoinedFeed};
use weir_ring::wake::Sleeper;

use crate::caller::{Caller, rings};
use crate::channel::{Channel, lock};
use crate::error::ClientError;
use crate::protocol::{Block, Changed, Closed, OfFeed, Opened, SetFilter};

/// What a consumer reads.
pub struct FeedSource(Arc<Channel>);

impl FeedSource {
    pub(crate) fn new(channel: Arc<Channel>) -> FeedSource {
        FeedSource(channel)
    }
}

impl FrameSource for FeedSource {
    fn take_changes(&mut self) -> Vec<FeedChange> {
        std::mem::take(&mut *lock(&self.0.changes))
    }

    fn sleeper(&self) -> &Sleeper {
        &self.0.sleeper
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete.load(Ordering::Acquire)
    }
}

/// An open feed. Dropping it closes it, and has its consumer end.
pub struct OpenFeed {
    number: u64,
    caller: Arc<Caller>,
    channel: Arc<Channel>,
    opened: Opened,
    /// The daemon has a channel that no feed has taken yet: a change moved no rings, or was refused.
    has_spare: Mutex<bool>,
}

impl OpenFeed {
    pub(crate) fn new(number: u64, caller: Arc<Caller>, channel: Arc<Channel>) -> OpenFeed {
        let (opened, has_spare) = (Opened::default(), Mutex::new(false));
        OpenFeed { number, caller, channel, opened, has_spare }
    }

    pub(crate) fn with(mut self, opened: Opened) -> OpenFeed {
        self.opened = opened;
        self
    }

    pub(crate) fn joined(&self, opened: &Opened, fds: Vec<OwnedFd>) -> Result<(), ClientError> {
        self.channel.push(FeedChange::Joined(JoinedFeed {
            key: opened.key,
            output: 0,
            label: String::new(),
            rings: rings(fds)?,
            first_line: opened.first_line,
            channel: Some(opened.channel),
            from_first: false,
        }));
        Ok(())
    }

    /// Which engine takes the frames, and why.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Why nothing more comes, once that is so.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        lock(&self.channel.reason).clone()
    }

    /// Has it choose by another filter from here on; empty takes all.
    ///
    /// # Errors
    /// What the daemon says; nothing has changed then.
    pub fn set_filter(&self, filter: &str) -> Result<(), ClientError> {
        let filter = SetFilter { feed: self.number, filter: filter.to_owned() };
        self.change("set_filter", &filter)
    }

    /// Has it leave out frames by these entries, and others not any more.
    ///
    /// # Errors
    /// What the daemon says; nothing has changed then.
    pub fn block(&self, add: Vec<String>, remove: Vec<String>) -> Result<(), ClientError> {
        self.change("block", &Block { feed: self.number, add, remove })
    }

    fn change(&self, method: &str, params: &impl Serialize) -> Result<(), ClientError> {
        // Held: changes come one after another.
        let mut has_spare = lock(&self.has_spare);
        let called = {
            let fds = match *has_spare {
                true => Vec::new(),
                false => Vec::from(self.channel.sleeper.channel()?),
            };
            *has_spare = true;
            self.caller.call::<Changed>(method, params, &fds)
        };
        let (Changed { joined, left }, fds) = called?;
        if let Some(opened) = joined {
            *has_spare = false;
            self.joined(&opened, fds)?;
        }
        if let Some(left) = left {
            self.channel.push(FeedChange::Left { key: left.key, until: left.until });
        }
        Ok(())
    }

    /// Leaves it, and gives its ledger: final, if nobody else reads it. Its consumer reads what was captured by then
    /// and ends. The daemon keeps the consumer's wake-up channels until this is dropped.
    ///
    /// # Errors
    /// What the daemon says.
    pub fn close(&self) -> Result<Closed, ClientError> {
        let (closed, _) =
            self.caller.call::<Closed>("close", &OfFeed { feed: self.number }, &[])?;
        if !closed.ended {
            let (key, until) = (closed.key, closed.until.clone());
            self.channel.push(FeedChange::Left { key, until });
        }
        self.channel.end("it was closed");
        Ok(closed)
    }
}

impl Drop for OpenFeed {
    fn drop(&mut self) {
        self.channel.end("it was closed");
        self.caller.forget(self.number);
        // A daemon that has gone has let go of everything.
        let _ = self.caller.call::<Value>("let_go", &OfFeed { feed: self.number }, &[]);
    }
}
