//! The way by which feeds call the daemon.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_plug::Client;
use weir_plug::limits::PATIENCE_MAX;
use weir_ring::{Mapping, Ring};

use crate::ending::Ending;
use crate::error::ClientError;
use crate::lock::lock;
use crate::protocol::{APPLICATION, InRegion, OfFeed};
use crate::region::Region;

/// A connection, as its feeds have it.
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) endings: Arc<Endings>,
    /// The memory of rings, if the connection carries no descriptors.
    pub(crate) region: Option<Arc<dyn Region>>,
    /// Feeds that nobody has any more, and whose rings somebody in this process has mapped yet.
    pub(crate) kept: Mutex<Vec<Kept>>,
    /// Called when feeds wait for [`Connection::let_go_of_unread`](crate::Connection::let_go_of_unread).
    pub(crate) notify: NotifyFn,
    /// Questions that are not answered yet.
    pub(crate) unanswered: AtomicUsize,
}

/// A callback that any thread may call. It must not block.
pub type NotifyFn = Arc<dyn Fn() + Send + Sync>;

/// A feed in a device's memory, which the daemon may give to another feed, or take away, once this is dropped.
pub(crate) struct Kept {
    pub(crate) number: u64,
    pub(crate) rings: Vec<Ring<Mapping>>,
    /// Of a guest with its host.
    pub(crate) at: Option<InRegion>,
    /// The daemon has gone, and with it all that it had of the feed.
    pub(crate) is_gone: bool,
}

impl Kept {
    fn is_mapped(&self) -> bool {
        self.rings.iter().any(|ring| Arc::strong_count(ring.memory()) > 1)
    }
}

/// How each feed ends, by its number.
pub(crate) type Endings = Mutex<BTreeMap<u64, Arc<Ending>>>;

impl Caller {
    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
        fds: &[OwnedFd],
    ) -> Result<(T, Vec<OwnedFd>), ClientError> {
        self.call_within(method, params, fds, PATIENCE_MAX)
    }

    /// The same with another limit for the answer.
    pub(crate) fn call_within<T: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
        fds: &[OwnedFd],
        limit: Duration,
    ) -> Result<(T, Vec<OwnedFd>), ClientError> {
        self.sweep();
        self.ask(method, params, fds, limit)
    }

    fn ask<T: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
        fds: &[OwnedFd],
        limit: Duration,
    ) -> Result<(T, Vec<OwnedFd>), ClientError> {
        let method = format!("{APPLICATION}.{method}");
        let params = serde_json::to_value(params)?;
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        let answer = self.client.call(&method, params, fds, limit);
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
        let answer = answer?;
        Ok((serde_json::from_value(answer.result)?, answer.descriptors))
    }

    /// Releases a feed, at once or when a later call finds that its rings are no longer mapped.
    pub(crate) fn let_go(&self, feed: Kept) {
        lock(&self.kept).push(feed);
        if self.sweep() {
            (self.notify)();
        }
    }

    /// Whether some feeds are mapped yet.
    pub(crate) fn sweep(&self) -> bool {
        let gone: Vec<Kept> = lock(&self.kept).extract_if(.., |kept| !kept.is_mapped()).collect();
        for Kept { number, rings, at, is_gone } in gone {
            drop(rings);
            if let (Some(region), Some(at)) = (&self.region, &at) {
                region.let_go(at);
            }
            if is_gone {
                continue;
            }
            // A daemon that has gone has released everything.
            let of_feed = OfFeed { feed: number };
            let _ = self.ask::<Value>("let_go", &of_feed, &[], PATIENCE_MAX);
        }
        !lock(&self.kept).is_empty()
    }

    pub(crate) fn forget(&self, feed: u64) {
        lock(&self.endings).remove(&feed);
    }
}
