//! The engine `host`: feeds of a daemon on this machine (`weir serve`), whose rings are read in place.
//!
//! The daemon captures, and its writers wake this process's consumers themselves: no frame passes through this engine.
//! It opens feeds, hands over what wakes their consumers, and tells what became of their frames since.

mod address;
mod control;
pub(crate) mod declaration;
mod names;
mod owner;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use weir_client::{ClientError, Connection, EndReason};

use crate::error::CaptureError;
use crate::feed::control::FeedControl;
use crate::kernel::netns::Owner;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source};
pub use address::Address;
use address::socket;
use control::HostControl;
use names::interned;

/// Feeds of one source of a daemon.
pub struct HostFeeds {
    info: Info,
    control: Arc<HostControl>,
    follows: bool,
}

impl HostFeeds {
    /// Opens feeds of a source of the daemon that listens at `given`, or at the usual place. If it `follows`, what the
    /// daemon refuses or closes counts as vanished.
    ///
    /// # Errors
    /// [`CaptureError::NoDaemon`], [`CaptureError::Daemon`], [`CaptureError::Vanished`].
    pub fn open(
        address: &Address,
        setup: &Setup,
        given: Option<&Path>,
        follows: bool,
    ) -> Result<HostFeeds, CaptureError> {
        let path = socket(given);
        let missing = |source: ClientError| CaptureError::NoDaemon { path: path.clone(), source };
        let connection = Connection::open(&path).map_err(missing)?;
        let control = HostControl::new(connection, path.clone(), address.clone(), setup.may_change);
        for feed in &setup.feeds {
            control.add(feed.clone()).map_err(|error| match error {
                CaptureError::Daemon { feed, .. } if follows => {
                    CaptureError::Vanished { iface: feed }
                }
                error => error,
            })?;
        }
        let info = Info {
            source: address.to_string(),
            engine: "host",
            hook: None,
            why: format!("read from the daemon at {}", path.display()),
            notes: Vec::new(),
            owner: None,
        };
        let info = control.first_opened().map_or(info.clone(), |opened| {
            let engine = if opened.engine.is_empty() { "an engine" } else { &opened.engine };
            let why = format!("{}; it captures with {engine}: {}", info.why, opened.why);
            let hook = opened.hook.as_deref().map(interned);
            let owner = opened.owner.map(Owner::from);
            Info { why, hook, notes: opened.notes, owner, ..info }
        });
        Ok(HostFeeds { info, control: Arc::new(control), follows })
    }
}

impl Source for HostFeeds {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        Arc::clone(&self.control) as Arc<dyn FeedControl>
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let Some(reason) = self.control.wait_for_end(limit) else { return Ok(Pumped::More) };
        let iface = self.info.source.clone();
        match reason {
            EndReason::SourceEnded => Ok(Pumped::Ended),
            EndReason::Failed(reason) if !self.follows => Err(self.control.refused(reason)),
            EndReason::Failed(_) | EndReason::Moved | EndReason::DaemonEnded => {
                Err(CaptureError::Vanished { iface })
            }
        }
    }

    fn can_be_woken(&self) -> bool {
        true
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.control.stop();
        Ok(())
    }
}
