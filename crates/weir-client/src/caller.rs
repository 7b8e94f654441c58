//! What feeds call through.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_plug::Client;
use weir_plug::limits::PATIENCE_MAX;

use crate::ending::Ending;
use crate::error::ClientError;
use crate::lock::lock;
use crate::protocol::APPLICATION;

/// A connection, as its feeds have it.
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) endings: Arc<Endings>,
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
        let method = format!("{APPLICATION}.{method}");
        let params = serde_json::to_value(params)?;
        let answer = self.client.call(&method, params, fds, limit)?;
        Ok((serde_json::from_value(answer.result)?, answer.descriptors))
    }

    pub(crate) fn forget(&self, feed: u64) {
        lock(&self.endings).remove(&feed);
    }
}
