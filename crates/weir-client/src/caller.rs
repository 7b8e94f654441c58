//! What feeds call through.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_plug::Client;
use weir_plug::limits::PATIENCE_MAX;
use weir_ring::memory::{self, Trust};
use weir_ring::{Mapping, Ring};

use crate::channel::{Channel, lock};
use crate::error::ClientError;
use crate::protocol::APPLICATION;

/// Lines of a feed's wake page: twice a ring per CPU of a large machine.
pub(crate) const LINES: usize = 1024;

/// A connection, as its feeds have it.
pub(crate) struct Caller {
    pub(crate) client: Client,
    pub(crate) channels: Arc<Channels>,
}

pub(crate) type Channels = Mutex<BTreeMap<u64, Arc<Channel>>>;

impl Caller {
    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        params: &impl Serialize,
        fds: &[OwnedFd],
    ) -> Result<(T, Vec<OwnedFd>), ClientError> {
        let method = format!("{APPLICATION}.{method}");
        let params = serde_json::to_value(params)?;
        let answer = self.client.call(&method, params, fds, PATIENCE_MAX)?;
        Ok((serde_json::from_value(answer.result)?, answer.descriptors))
    }

    pub(crate) fn forget(&self, feed: u64) {
        lock(&self.channels).remove(&feed);
    }
}

/// The rings of these descriptors. Nobody is trusted: the daemon of a path may be anybody.
pub(crate) fn rings(fds: Vec<OwnedFd>) -> Result<Vec<Ring<Mapping>>, ClientError> {
    let rings: Result<Vec<_>, _> =
        fds.into_iter().map(|fd| memory::attach(fd, Trust::Anybody)).collect();
    let rings = rings?;
    if rings.is_empty() || rings.len() > LINES {
        return Err(ClientError::Answer(format!("{} rings", rings.len())));
    }
    Ok(rings)
}
