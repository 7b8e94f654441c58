//! A connection to a daemon.

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use weir_plug::limits::PATIENCE_MAX;
use weir_plug::{Client, Incoming, PlugError, Transport};

use crate::caller::{Caller, Endings, NotifyFn};
use crate::ending::{EndReason, Ending};
use crate::error::ClientError;
use crate::lock::lock;
use crate::protocol::{
    self, BlockChanged, BlockNamed, Blocked, BlockedNamed, Gone, Open, Opened, Source, Statistics,
};
use crate::region::Region;
use crate::remote_feed::{RemoteFeed, attach_rings, in_messages, ring_of_region};
use crate::status::Status;

fn ignore() -> NotifyFn {
    Arc::new(|| ())
}

/// The name and version that the daemon is told.
const NAME: &str = concat!("weir-client ", env!("CARGO_PKG_VERSION"));

/// A connection to a daemon. When the connection ends, the daemon closes its feeds.
#[derive(Clone)]
pub struct Connection {
    pub(crate) caller: Arc<Caller>,
    next: Arc<AtomicU64>,
}

impl Connection {
    /// Connects to the daemon that listens at `path`.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn open(path: &Path) -> Result<Connection, ClientError> {
        Connection::with(None, ignore(), |incoming| Client::connect(path, NAME, incoming))
    }

    /// Returns the name and version of the daemon, as the daemon gives them: `weir serve`, or in a virtual machine
    /// `weir guest`.
    #[must_use]
    pub fn server(&self) -> &str {
        self.caller.client.server()
    }

    /// Connects over the given transport.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn over(transport: Arc<dyn Transport>) -> Result<Connection, ClientError> {
        Connection::with(None, ignore(), |incoming| Client::over(transport, NAME, incoming))
    }

    /// Connects a guest to its host: rings are looked for in `region`. `notify` is called when the host may offer other
    /// sources than before, when [`let_go_of_unread`](Connection::let_go_of_unread) must be called, and when the
    /// connection has ended. It must not block, and must not call functions of the connection.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn of_guest(
        transport: Arc<dyn Transport>,
        region: Arc<dyn Region>,
        notify: NotifyFn,
    ) -> Result<Connection, ClientError> {
        Connection::with(Some(region), notify, |incoming| Client::over(transport, NAME, incoming))
    }

    fn with(
        region: Option<Arc<dyn Region>>,
        notify: NotifyFn,
        connect: impl FnOnce(Box<dyn FnMut(Incoming) + Send>) -> Result<Client, PlugError>,
    ) -> Result<Connection, ClientError> {
        let endings = Arc::new(Endings::default());
        let (own, changed) = (Arc::clone(&endings), Arc::clone(&notify));
        let client = connect(Box::new(move |incoming| match incoming {
            Incoming::Notification { method, params, .. } if method == "capture.gone" => {
                if let Ok(Gone { feed, reason, moved }) = serde_json::from_value(params) {
                    let ending = lock(&own).get(&feed).cloned();
                    let why = match (reason, moved) {
                        (_, true) => EndReason::Moved,
                        (None, false) => EndReason::SourceEnded,
                        (Some(reason), false) => EndReason::Failed(reason),
                    };
                    ending.into_iter().for_each(|ending| ending.end(why.clone()));
                }
            }
            Incoming::Notification { method, .. } if method == protocol::SOURCES_CHANGED => {
                changed()
            }
            // Notifications of later versions are ignored.
            Incoming::Notification { .. } => {}
            Incoming::Ended => {
                let all: Vec<Arc<Ending>> = lock(&own).values().cloned().collect();
                all.iter().for_each(|ending| ending.end(EndReason::DaemonEnded));
                changed();
            }
        }))?;
        let next = Arc::new(AtomicU64::new(1));
        Ok(Connection {
            caller: Arc::new(Caller {
                client,
                endings,
                region,
                kept: Mutex::default(),
                notify,
                unanswered: AtomicUsize::new(0),
            }),
            next,
        })
    }

    /// Returns the sources that this user may open.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn sources(&self) -> Result<Vec<Source>, ClientError> {
        self.sources_within(PATIENCE_MAX)
    }

    /// Like [`sources`](Connection::sources); fails if the daemon does not answer within `limit`.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn sources_within(&self, limit: Duration) -> Result<Vec<Source>, ClientError> {
        let (answer, _) = self.caller.call_within::<Value>("sources", &json!({}), &[], limit)?;
        Ok(serde_json::from_value(answer["sources"].clone())?)
    }

    /// Tells whether the connection is open, as far as this side knows.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.caller.client.is_open()
    }

    /// Tells whether the daemon works: it answers a request within `limit`, or an earlier request is pending, whose
    /// time limit is not over yet. The daemon answers requests in order, so none is sent in the second case.
    #[must_use]
    pub fn is_answering(&self, limit: Duration) -> bool {
        self.caller.unanswered.load(Ordering::Relaxed) > 0 || self.sources_within(limit).is_ok()
    }

    /// Releases feeds that were dropped and whose rings are no longer mapped in this process. Returns whether rings of
    /// dropped feeds are still mapped: then this must be called again.
    #[must_use]
    pub fn let_go_of_unread(&self) -> bool {
        self.caller.sweep()
    }

    /// Returns the counts so far of this connection's feeds.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn statistics(&self) -> Result<Vec<Statistics>, ClientError> {
        let (answer, _) = self.caller.call::<Value>("statistics", &json!({}), &[])?;
        Ok(serde_json::from_value(answer["feeds"].clone())?)
    }

    /// Returns the daemon's status, as far as this user may see it.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn status(&self) -> Result<Status, ClientError> {
        Ok(self.caller.call::<Status>("status", &json!({}), &[])?.0)
    }

    /// Blocks frames in all feeds with a name ([`Open::name`]) by the entries of `add`, for `time` if it is given, and
    /// unblocks the entries of `remove`. This concerns the feeds that this user has on any connection; for root and the
    /// daemon's user, the feeds of all users. Long lists are sent in several messages. Each message takes effect in all
    /// of the feeds or in none.
    ///
    /// # Errors
    /// The daemon's error, with the code [`NO_FEED`](protocol::NO_FEED) if no feed has the name now. Of a long list, a
    /// part may be in force then.
    pub fn block_named(
        &self,
        name: &str,
        add: &[String],
        remove: &[String],
        time: Option<Duration>,
    ) -> Result<BlockChanged, ClientError> {
        let (mut all, expires_ms) = (BlockChanged::default(), time.map(protocol::expires_ms));
        in_messages(add, remove, |add, remove| {
            let (name, add, remove) = (name.to_owned(), add.to_vec(), remove.to_vec());
            let block = BlockNamed { name, add, remove, expires_ms };
            let (changed, _) = self.caller.call::<BlockChanged>("block_named", &block, &[])?;
            all = BlockChanged { changed: all.changed.saturating_add(changed.changed), ..changed };
            Ok(())
        })?;
        Ok(all)
    }

    /// Returns the entries that the feeds with a name block.
    ///
    /// # Errors
    /// As [`block_named`](Connection::block_named).
    pub fn blocked_named(&self, name: &str) -> Result<Blocked, ClientError> {
        let of = BlockedNamed { name: name.to_owned() };
        Ok(self.caller.call::<Blocked>("blocked_named", &of, &[])?.0)
    }

    /// Opens a feed, and chooses its number. Feeds with the same settings share the daemon's rings.
    ///
    /// # Errors
    /// The daemon's error; rings that cannot be read safely.
    pub fn open_feed(&self, open: &Open) -> Result<RemoteFeed, ClientError> {
        self.open_feed_with(open, Arc::new(Ending::default()))
    }

    /// Opens one of several feeds that share `ending`: the first that ends sets it.
    ///
    /// # Errors
    /// As [`open_feed`](Connection::open_feed).
    pub fn open_feed_with(
        &self,
        open: &Open,
        ending: Arc<Ending>,
    ) -> Result<RemoteFeed, ClientError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let open = Open { feed: number, ..open.clone() };
        lock(&self.caller.endings).insert(number, Arc::clone(&ending));
        let called = self.caller.call::<Opened>("open", &open, &[]);
        // `RemoteFeed` closes the feed when it is dropped, so also if one of the next steps fails.
        let mut feed = RemoteFeed::new(number, Arc::clone(&self.caller), ending);
        let (opened, fds) = called?;
        feed.begin = opened.from.clone();
        feed.opened = opened;
        feed.rings = match &self.caller.region {
            Some(region) => ring_of_region(region.as_ref(), &feed.opened)?,
            None => attach_rings(fds, &feed.opened.parts)?,
        };
        Ok(feed)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Mutex;
    use std::sync::mpsc::{self, Receiver, Sender};
    use std::thread;

    use weir_plug::{
        Answer, Application, Peer, RpcError, Server, ServerLimits, Serving, Session, socket,
    };

    use super::*;
    use crate::protocol::APPLICATION;

    /// Says that it was asked, and answers once it is told to.
    struct Slow {
        asked: Sender<()>,
        answer: Arc<Mutex<Receiver<()>>>,
    }

    impl Application for Slow {
        fn name(&self) -> &str {
            APPLICATION
        }

        fn connect(&self, _: &Arc<Peer>) -> Result<Box<dyn Session>, RpcError> {
            let (asked, answer) = (self.asked.clone(), Arc::clone(&self.answer));
            Ok(Box::new(Slow { asked, answer }))
        }
    }

    impl Session for Slow {
        fn call(&mut self, _: &str, _: Value, _: Vec<OwnedFd>) -> Result<Answer, RpcError> {
            let _ = self.asked.send(());
            // The test has ended where nobody tells.
            let _ = lock(&self.answer).recv();
            Ok(Answer { result: json!({ "sources": [] }), descriptors: Vec::new() })
        }
    }

    struct Setup {
        connection: Connection,
        asked: Receiver<()>,
        answer: Sender<()>,
        _serving: Serving,
        _file: socket::SocketFile,
        _folder: tempfile::TempDir,
    }

    fn setup() -> Setup {
        let ((own, asked), (answer, told)) = (mpsc::channel(), mpsc::channel());
        let slow = Slow { asked: own, answer: Arc::new(Mutex::new(told)) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (listener, file) = socket::bind(&path, 0o600).unwrap();
        let server = Server::new("test", ServerLimits::default()).with(Arc::new(slow));
        let serving = server.serve(listener).unwrap();
        let connection = Connection::open(&path).unwrap();
        Setup { connection, asked, answer, _serving: serving, _file: file, _folder: folder }
    }

    #[test]
    fn a_daemon_that_is_at_another_question_is_there() {
        let setup = setup();
        let other = setup.connection.clone();
        let asking = thread::spawn(move || other.sources());
        setup.asked.recv().unwrap();
        // It could not answer: it is at the other question until it is told to go on.
        assert!(setup.connection.is_answering(Duration::from_millis(1)));
        setup.answer.send(()).unwrap();
        assert!(asking.join().unwrap().is_ok());
        // Nothing is left unanswered: the next question is put, and answered.
        setup.answer.send(()).unwrap();
        assert!(setup.connection.is_answering(PATIENCE_MAX));
        setup.asked.recv().unwrap();
    }

    #[test]
    fn a_daemon_that_does_not_answer_is_not_there_even_when_it_is_asked_again() {
        let setup = setup();
        for _ in 0..2 {
            assert!(!setup.connection.is_answering(Duration::from_millis(20)));
        }
        setup.asked.recv().unwrap();
        drop(setup.answer);
    }
}
