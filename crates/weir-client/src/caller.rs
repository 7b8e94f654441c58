//! Calls of the daemon, which all feeds of a connection make.

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

/// The state of a connection that its feeds share.
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) endings: Arc<Endings>,
    /// The shared memory with the rings, if the connection cannot transfer descriptors.
    pub(crate) region: Option<Arc<dyn Region>>,
    /// Released feeds whose rings are still mapped in this process.
    pub(crate) kept: Mutex<Vec<Kept>>,
    /// Called when feeds wait for [`Connection::let_go_of_unread`](crate::Connection::let_go_of_unread).
    pub(crate) notify: NotifyFn,
    /// Number of calls that the daemon has not answered yet.
    pub(crate) unanswered: AtomicUsize,
}

/// A callback that any thread may call. It must not block.
pub type NotifyFn = Arc<dyn Fn() + Send + Sync>;

/// A released feed. Once the daemon is told so, it may reuse or remove the memory of the rings.
pub(crate) struct Kept {
    pub(crate) number: u64,
    pub(crate) rings: Vec<Ring<Mapping>>,
    /// The place of the ring in the region, for a guest of a host.
    pub(crate) at: Option<InRegion>,
    /// The daemon has ended, so it has no state of the feed any more.
    pub(crate) is_gone: bool,
}

impl Kept {
    fn is_mapped(&self) -> bool {
        self.rings.iter().any(|ring| Arc::strong_count(ring.memory()) > 1)
    }
}

/// The endings of feeds, by the numbers of the feeds.
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

    /// Like `call`, with another limit for the answer.
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

    /// Releases the feeds whose rings are no longer mapped. Returns whether any feed remains.
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
            // A daemon that has ended has released everything.
            let of_feed = OfFeed { feed: number };
            let _ = self.ask::<Value>("let_go", &of_feed, &[], PATIENCE_MAX);
        }
        !lock(&self.kept).is_empty()
    }

    pub(crate) fn forget(&self, feed: u64) {
        lock(&self.endings).remove(&feed);
    }
}
