//! A client: calls with a time limit, and notifications.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use serde_json::{Value, json};

use crate::VERSION;
use crate::application::Answer;
use crate::error::PlugError;
use crate::limits::{CLIENT_DESCRIPTORS_MAX, MESSAGE_BYTES_MAX, PATIENCE_MAX};
use crate::message::{Message, RpcError};
use crate::transport::{Transport, UnixTransport};
use crate::wire::{self, Received};

/// An unsolicited message.
#[derive(Debug)]
pub enum Incoming {
    /// A notification.
    Notification {
        /// The full name of the method.
        method: String,
        /// The params; null if there are none.
        params: Value,
        /// The descriptors that came with it.
        descriptors: Vec<OwnedFd>,
    },
    /// The connection has ended; no more messages come.
    Ended,
}

/// A connection to a server. Dropping it ends the connection.
pub struct Client {
    shared: Arc<Shared>,
    server: String,
    applications: Vec<String>,
    reader: Option<JoinHandle<()>>,
}

type Waiting = BTreeMap<u64, SyncSender<Result<Answer, RpcError>>>;

struct Shared {
    transport: Arc<dyn Transport>,
    /// Held while a message is written.
    writing: Mutex<()>,
    /// The callers that wait for answers, by the number of the request; `None` once the connection has ended.
    waiting: Mutex<Option<Waiting>>,
    number: AtomicU64,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(
        &self,
        method: &str,
        params: Value,
        fds: &[OwnedFd],
        limit: Duration,
    ) -> Result<Answer, PlugError> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = sync_channel(1);
        self.waiting().as_mut().ok_or(PlugError::Closed)?.insert(number, sender);
        let (id, method, params) = (json!(number), method.to_owned(), Some(params));
        let sent = {
            let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            wire::send(self.transport.as_ref(), &Message::Request { id, method, params }, fds)
        };
        let answer = match sent {
            Ok(()) => answer.recv_timeout(limit),
            // A part of the message may have been sent, so the connection is of no more use. A server that refuses the
            // connection sends the reason before it closes it: the answer may be there.
            Err(_) => {
                let answer = answer.recv_timeout(Duration::from_millis(100));
                self.transport.hang_up();
                answer.map_err(|_| RecvTimeoutError::Disconnected)
            }
        };
        if let Some(waiting) = self.waiting().as_mut() {
            waiting.remove(&number);
        }
        match answer {
            Ok(answer) => Ok(answer?),
            Err(RecvTimeoutError::Timeout) => Err(PlugError::NoAnswer(limit)),
            Err(RecvTimeoutError::Disconnected) => Err(PlugError::Closed),
        }
    }

    /// Reads until the connection ends. Late answers and their descriptors are dropped.
    fn read(&self, mut incoming: impl FnMut(Incoming)) {
        while let Ok(true) = self.transport.wait(None) {
            let received =
                wire::receive(self.transport.as_ref(), MESSAGE_BYTES_MAX, CLIENT_DESCRIPTORS_MAX);
            match received {
                Ok(Received::Message(Message::Response { id, outcome }, descriptors)) => {
                    let mut waiting = self.waiting();
                    let Some(waiting) = waiting.as_mut() else { break };
                    let outcome = outcome.map(|result| Answer { result, descriptors });
                    match id.as_u64().and_then(|number| waiting.remove(&number)) {
                        Some(caller) => _ = caller.send(outcome),
                        // An error without an id concerns the connection; the first caller gets it.
                        None if id.is_null() => {
                            if let Some((_, caller)) = waiting.pop_first() {
                                _ = caller.send(outcome);
                            }
                        }
                        None => {}
                    }
                }
                Ok(Received::Message(Message::Notification { method, params }, descriptors)) => {
                    let params = params.unwrap_or_default();
                    incoming(Incoming::Notification { method, params, descriptors });
                }
                // Servers send no requests.
                Ok(Received::Message(Message::Request { .. }, _)) => {}
                Ok(Received::Malformed(_) | Received::End) | Err(_) => break,
            }
        }
        self.transport.hang_up();
        *self.waiting() = None;
        incoming(Incoming::Ended);
    }
}

impl Client {
    /// Tells whether the connection is open, as far as this side knows.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.shared.waiting().is_some()
    }

    /// Connects to the server that listens at `path`, and sends `plug.hello` with the client's name `name`. `incoming`
    /// gets unsolicited messages, in order, on the connection's thread; it must not block, and must not call functions
    /// of the client.
    ///
    /// # Errors
    /// The kernel's error, or the server's.
    pub fn connect(
        path: &Path,
        name: &str,
        incoming: impl FnMut(Incoming) + Send + 'static,
    ) -> Result<Client, PlugError> {
        let doing = || PlugError::os(format!("connecting to {}", path.display()));
        let stream = UnixStream::connect(path).map_err(doing())?;
        let transport = UnixTransport::new(stream).map_err(doing())?;
        Client::over(Arc::new(transport), name, incoming)
    }

    /// Like [`connect`](Client::connect), over any transport.
    ///
    /// # Errors
    /// The transport's error, or the server's.
    pub fn over(
        transport: Arc<dyn Transport>,
        name: &str,
        incoming: impl FnMut(Incoming) + Send + 'static,
    ) -> Result<Client, PlugError> {
        let shared = Arc::new(Shared {
            transport,
            writing: Mutex::default(),
            waiting: Mutex::new(Some(BTreeMap::new())),
            number: AtomicU64::new(1),
        });
        let theirs = Arc::clone(&shared);
        let reader = without_signals(|| {
            thread::Builder::new().name("plug-client".into()).spawn(move || theirs.read(incoming))
        });
        let reader = reader.map_err(PlugError::os("starting a thread"))?;
        let reader = Some(reader);
        let mut client = Client { shared, server: String::new(), applications: Vec::new(), reader };
        let params = json!({ "versions": [VERSION], "name": name });
        let hello = client.call("plug.hello", params, &[], PATIENCE_MAX)?.result;
        client.server = hello["name"].as_str().unwrap_or_default().to_owned();
        let applications = hello["applications"].as_array().into_iter().flatten();
        client.applications = applications.filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(client)
    }

    /// Returns the name and version that the server reports; only for messages and hints.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Returns the names of the server's applications.
    #[must_use]
    pub fn applications(&self) -> &[String] {
        &self.applications
    }

    /// Sends a request with these descriptors, and waits for the answer. Several threads may call this at the same
    /// time.
    ///
    /// # Errors
    /// [`PlugError::NoAnswer`] after `limit`, [`PlugError::Refused`] with the server's message, [`PlugError::Closed`].
    pub fn call(
        &self,
        method: &str,
        params: Value,
        descriptors: &[OwnedFd],
        limit: Duration,
    ) -> Result<Answer, PlugError> {
        self.shared.call(method, params, descriptors, limit)
    }
}

/// Starts a thread with all signals blocked, so that other threads of the program handle them.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut blocked = SigSet::all();
    // SIGURG stays unblocked: a thread that drops the capabilities of all threads sends it to each of them.
    blocked.remove(Signal::SIGURG);
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let started = start();
    if let Ok(before) = before {
        // This cannot fail: the mask was in force before.
        let _ = before.thread_set_mask();
    }
    started
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.transport.hang_up();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
