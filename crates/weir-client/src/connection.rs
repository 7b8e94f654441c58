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

/// As the daemon is told.
const NAME: &str = concat!("weir-client ", env!("CARGO_PKG_VERSION"));

/// A connection to a daemon. The daemon closes its feeds when it ends.
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

    /// The name and version of the daemon, as it gives them: `weir serve`, or in a virtual machine `weir guest`.
    #[must_use]
    pub fn server(&self) -> &str {
        self.caller.client.server()
    }

    /// The same, over any transport.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn over(transport: Arc<dyn Transport>) -> Result<Connection, ClientError> {
        Connection::with(None, ignore(), |incoming| Client::over(transport, NAME, incoming))
    }

    /// The same, of a guest with its host: rings are looked for in `region`. `notify` is called when the host may
    /// offer other sources than before, when [`let_go_of_unread`](Connection::let_go_of_unread) is to be called, and
    /// when the connection has ended; it must not wait, and must not call.
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
            // Of a later version.
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

    /// The sources that may be opened.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn sources(&self) -> Result<Vec<Source>, ClientError> {
        self.sources_within(PATIENCE_MAX)
    }

    /// The same, if the daemon answers within `limit`.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn sources_within(&self, limit: Duration) -> Result<Vec<Source>, ClientError> {
        let (answer, _) = self.caller.call_within::<Value>("sources", &json!({}), &[], limit)?;
        Ok(serde_json::from_value(answer["sources"].clone())?)
    }

    /// Whether it has not ended, as far as this side knows.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.caller.client.is_open()
    }

    /// Whether the daemon is there: it answers within `limit`, or is asked something already that it has not answered
    /// yet, nor failed to in time. It answers one question after the other, so nothing is asked then.
    #[must_use]
    pub fn is_answering(&self, limit: Duration) -> bool {
        self.caller.unanswered.load(Ordering::Relaxed) > 0 || self.sources_within(limit).is_ok()
    }

    /// Lets go of feeds that nobody has any more and whose rings nobody in this process has mapped any more. Whether
    /// there are such that somebody has mapped yet, so that this is to be called again.
    #[must_use]
    pub fn let_go_of_unread(&self) -> bool {
        self.caller.sweep()
    }

    /// The ledgers so far of this connection's feeds.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn statistics(&self) -> Result<Vec<Statistics>, ClientError> {
        let (answer, _) = self.caller.call::<Value>("statistics", &json!({}), &[])?;
        Ok(serde_json::from_value(answer["feeds"].clone())?)
    }

    /// The daemon's status, as far as this user may know it.
    ///
    /// # Errors
    /// [`ClientError::Plug`].
    pub fn status(&self) -> Result<Status, ClientError> {
        Ok(self.caller.call::<Status>("status", &json!({}), &[])?.0)
    }

    /// Blocks frames in all feeds of a name ([`Open::name`]) by the entries of `add`, for the time `time` if it is
    /// given, and unblocks the entries of `remove`. They are those that this user has on any connection; connections
    /// of root and of the daemon's user change those of all users. Long lists go in several messages; all of the
    /// feeds take a message or none.
    ///
    /// # Errors
    /// The daemon's error, with the code [`NO_FEED`](protocol::NO_FEED) if there is no such feed now; of a long list
    /// a part may be in force.
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

    /// Entries that the feeds of a name block.
    ///
    /// # Errors
    /// As [`block_named`](Connection::block_named).
    pub fn blocked_named(&self, name: &str) -> Result<Blocked, ClientError> {
        let of = BlockedNamed { name: name.to_owned() };
        Ok(self.caller.call::<Blocked>("blocked_named", &of, &[])?.0)
    }

    /// Opens a feed; its number is chosen here. Feeds that take the same share the daemon's rings.
    ///
    /// # Errors
    /// The daemon's error; rings that cannot be read safely.
    pub fn open_feed(&self, open: &Open) -> Result<RemoteFeed, ClientError> {
        self.open_feed_with(open, Arc::new(Ending::default()))
    }

    /// The same, of one of several feeds that end together: whichever ends first ends `ending`.
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
        // From here on an error closes it again.
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
