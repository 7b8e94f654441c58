//! The engine `host`: opens feeds of a daemon on this machine (`weir serve`), whose rings are read in place.
//!
//! The daemon captures the frames, and its writers wake this process's consumers: no frame passes through this engine.
//! The engine opens feeds, passes the consumers' wakers to the daemon, and reads the ledgers.

mod address;
mod control;
pub(crate) mod declaration;
mod feed;
#[cfg(test)]
mod feed_tests;
mod names;
mod owner;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_client::{ClientError, Connection, EndReason};

use crate::error::CaptureError;
use crate::feed::control::FeedControl;
use crate::kernel::netns::Owner;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source};
use address::{address_of, link_type};
use control::HostControl;
use names::interned;
pub use weir_client::Address;

/// A link to a daemon other than a socket of this machine.
pub trait HostLink: fmt::Debug + Send + Sync {
    /// Returns an open connection to the daemon.
    ///
    /// # Errors
    /// The daemon does not answer.
    fn connection(&self) -> Result<Connection, ClientError>;

    /// Returns the path of the link, such as a device.
    fn path(&self) -> PathBuf;

    /// Returns notes for the user about the link of an open feed.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the pcap link type of a source's frames, as the daemon last reported it.
    fn link_type(&self, source: &str) -> u16;
}

/// A source whose feeds are those of a daemon's source.
pub struct HostFeeds {
    info: Info,
    control: Arc<HostControl>,
    follows: bool,
}

impl HostFeeds {
    /// Opens feeds of a source of the daemon that listens at `given`, or at the default socket. With `follows`, a feed
    /// that the daemon closes ends with [`CaptureError::FeedEnded`] and a refusal is [`CaptureError::DaemonRefuses`];
    /// without it, they are [`CaptureError::FeedClosed`] and [`CaptureError::Daemon`].
    ///
    /// # Errors
    /// [`CaptureError::NoDaemon`], [`CaptureError::Daemon`], [`CaptureError::DaemonRefuses`].
    pub fn open(
        address: &Address,
        setup: &Setup,
        given: Option<&Path>,
        follows: bool,
    ) -> Result<HostFeeds, CaptureError> {
        let path = weir_client::socket_path(given);
        let missing = |cause: ClientError| CaptureError::NoDaemon { path: path.clone(), cause };
        let connection = Connection::open(&path).map_err(missing)?;
        HostFeeds::over(connection, path, address, setup, follows)
    }

    /// Opens feeds like [`open`](HostFeeds::open), but of a daemon that is reached by a link.
    ///
    /// # Errors
    /// As [`open`](HostFeeds::open).
    pub fn open_by(
        link: &dyn HostLink,
        address: &Address,
        setup: &Setup,
        follows: bool,
    ) -> Result<HostFeeds, CaptureError> {
        let path = link.path();
        let missing = |cause: ClientError| CaptureError::NoDaemon { path: path.clone(), cause };
        let connection = link.connection().map_err(missing)?;
        let mut feeds = HostFeeds::over(connection, path, address, setup, follows)?;
        feeds.info.notes.extend(link.notes());
        Ok(feeds)
    }

    fn over(
        connection: Connection,
        path: PathBuf,
        address: &Address,
        setup: &Setup,
        follows: bool,
    ) -> Result<HostFeeds, CaptureError> {
        let control = HostControl::new(connection, path.clone(), address.clone(), setup.may_change);
        for feed in &setup.feeds {
            control.add(feed.clone()).map_err(|error| match error {
                CaptureError::Daemon { feed, path, reason } if follows => {
                    CaptureError::DaemonRefuses { feed, path, reason }
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
        match reason {
            EndReason::SourceEnded => Ok(Pumped::Ended),
            EndReason::Failed(reason) if !self.follows => Err(self.control.closed(reason)),
            why @ (EndReason::Failed(_) | EndReason::Moved | EndReason::DaemonEnded) => {
                Err(CaptureError::FeedEnded { feed: self.info.source.clone(), why })
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn read_message(stream: &mut UnixStream) {
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut body).unwrap();
    }

    /// The error is `NoDaemon`, so that a caller that waits for a daemon also waits for its successor.
    #[test]
    fn a_daemon_that_ends_while_it_opens_a_feed_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            read_message(&mut stream);
            let hello = br#"{"jsonrpc": "2.0", "id": 1,
                "result": {"version": 1, "name": "test", "applications": ["capture"]}}"#;
            let length = u32::try_from(hello.len()).unwrap().to_be_bytes();
            stream.write_all(&[&length, &hello[..]].concat()).unwrap();
            read_message(&mut stream);
        });
        let address = Address { source: "lan".to_owned(), part: None };
        let opened = HostFeeds::open(&address, &Setup::default(), Some(&path), false);
        daemon.join().unwrap();
        let error = opened.err().expect("there is no answer");
        assert!(matches!(error, CaptureError::NoDaemon { .. }), "{error}");
    }
}
