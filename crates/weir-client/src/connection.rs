//! A connection to a daemon.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use weir_plug::{Client, Incoming};
use weir_ring::wake::Sleeper;

use crate::caller::{Caller, Channels, LINES};
use crate::channel::{Channel, lock};
use crate::error::ClientError;
use crate::feed::{FeedSource, OpenFeed};
use crate::protocol::{Gone, Open, Opened, Source, Statistics};

/// A connection to a daemon. Its feeds end with it.
pub struct Connection {
    caller: Arc<Caller>,
    next: AtomicU64,
}

impl Connection {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn open(path: &Path) -> Result<Connection, ClientError> {
        let channels = Arc::new(Channels::default());
        let own = Arc::clone(&channels);
        let name = concat!("weir-client ", env!("CARGO_PKG_VERSION"));
        let client = Client::connect(path, name, move |incoming| match incoming {
            Incoming::Notification { method, params, .. } if method == "capture.gone" => {
                if let Ok(Gone { feed, reason }) = serde_json::from_value(params) {
                    lock(&own).get(&feed).iter().for_each(|channel| channel.end(&reason));
                }
            }
            // Of a later version.
            Incoming::Notification { .. } => {}
            // The channels of the rings have hung up, which their readers hear as well.
            Incoming::Ended => {
                lock(&own).values().for_each(|channel| channel.end("the daemon has ended"));
            }
        })?;
        Ok(Connection { caller: Arc::new(Caller { client, channels }), next: AtomicU64::new(1) })
    }

    /// The sources that may be opened.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn sources(&self) -> Result<Vec<Source>, ClientError> {
        let (answer, _) = self.caller.call::<Value>("sources", &json!({}), &[])?;
        Ok(serde_json::from_value(answer["sources"].clone())?)
    }

    /// The ledgers so far of this connection's feeds.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn statistics(&self) -> Result<Vec<Statistics>, ClientError> {
        let (answer, _) = self.caller.call::<Value>("statistics", &json!({}), &[])?;
        Ok(serde_json::from_value(answer["feeds"].clone())?)
    }

    /// Opens a feed; the number and the lines of `open` are chosen here. What it gives is read by one consumer. Two
    /// that take the same share the daemon's rings.
    ///
    /// # Errors
    /// What the daemon says; rings that cannot be read safely.
    pub fn open_feed(&self, open: &Open) -> Result<(OpenFeed, FeedSource), ClientError> {
        let feed = self.next.fetch_add(1, Ordering::Relaxed);
        let sleeper = Arc::new(Sleeper::new(LINES)?);
        let channel = Arc::new(Channel::new(Arc::clone(&sleeper))?);
        lock(&self.caller.channels).insert(feed, Arc::clone(&channel));
        let open = Open { feed, lines: LINES, ..open.clone() };
        // Dropped once they are sent: a copy of the writer's end would hide that the writer has died.
        let called = {
            let fds = sleeper.channel()?;
            self.caller.call::<Opened>("open", &open, &fds)
        };
        let made = OpenFeed::new(feed, Arc::clone(&self.caller), Arc::clone(&channel));
        // From here on an error closes it again.
        let (opened, fds) = called?;
        made.joined(&opened, fds)?;
        Ok((made.with(opened), FeedSource::new(channel)))
    }
}
