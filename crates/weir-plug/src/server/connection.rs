//! One connection: its calls, in order, and the cleanup at the end.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use super::Shared;
use crate::VERSION;
use crate::application::{Answer, Session};
use crate::limits::{HELLO_BYTES_MAX, PATIENCE_MAX};
use crate::message::{Message, NO_HELLO, RpcError, split_method};
use crate::pace::Pace;
use crate::peer::Peer;
use crate::transport::Transport;
use crate::wire::{self, Received};

/// The place of a connection among those of the server. It becomes free when the last reference is dropped: by the
/// thread that reads from the peer, or by the thread that writes the queued messages.
pub(super) struct Placed {
    shared: Arc<Shared>,
    number: u64,
}

impl Placed {
    pub(super) fn new(shared: &Arc<Shared>, number: u64) -> Arc<Placed> {
        Arc::new(Placed { shared: Arc::clone(shared), number })
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.shared.places().retain(|place| place.peer.number() != self.number);
    }
}

/// A connection. When it is dropped, its sessions end.
pub(super) struct Connection {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    transport: Arc<dyn Transport>,
    has_said_hello: bool,
    sessions: BTreeMap<String, Box<dyn Session>>,
    _placed: Arc<Placed>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.sessions.clear();
        self.peer.finish();
    }
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        transport: Arc<dyn Transport>,
        placed: Arc<Placed>,
    ) -> Connection {
        let sessions = BTreeMap::new();
        Connection { shared, peer, transport, has_said_hello: false, sessions, _placed: placed }
    }

    /// Serves the connection until it ends.
    pub(super) fn serve(mut self) {
        let hello_by = Instant::now() + PATIENCE_MAX;
        let mut pace = Pace::new(self.shared.limits.messages_per_second, Instant::now());
        loop {
            // A peer that has sent `plug.hello` may be silent for any time.
            let limit =
                (!self.has_said_hello).then(|| hello_by.saturating_duration_since(Instant::now()));
            if !self.transport.wait(limit).unwrap_or(false) {
                return;
            }
            let delay = pace.take(Instant::now());
            if !delay.is_zero() {
                self.shared.counters.delayed.fetch_add(1, Ordering::Relaxed);
                thread::sleep(delay);
            }
            let limits = &self.shared.limits;
            let bytes = match self.has_said_hello {
                true => limits.message_bytes,
                false => HELLO_BYTES_MAX.min(limits.message_bytes),
            };
            let received = wire::receive(self.transport.as_ref(), bytes, limits.descriptors);
            let answered = match received {
                Ok(Received::Message(message, fds)) => self.take(message, fds),
                Ok(Received::Malformed(error)) => {
                    self.shared.counters.malformed.fetch_add(1, Ordering::Relaxed);
                    let answer = Message::response(Value::Null, Err(error));
                    self.peer.answer(answer, Vec::new()).is_ok()
                }
                Ok(Received::End) => return,
                Err(_) => {
                    self.shared.counters.malformed.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            };
            if !answered {
                return;
            }
        }
    }

    /// Carries out a request. Returns `false` if the answer cannot be sent.
    fn take(&mut self, message: Message, fds: Vec<OwnedFd>) -> bool {
        match message {
            Message::Request { id, method, params } => {
                let (outcome, fds) = match self.carry_out(&method, params, fds) {
                    Ok(Answer { result, descriptors }) => (Ok(result), descriptors),
                    Err(error) => (Err(error), Vec::new()),
                };
                self.peer.answer(Message::response(id, outcome), fds).is_ok()
            }
            Message::Notification { method, params } => {
                let _ = self.carry_out(&method, params, fds);
                true
            }
            // A server sends no requests, so a response is ignored.
            Message::Response { .. } => true,
        }
    }

    fn carry_out(
        &mut self,
        whole: &str,
        params: Option<Value>,
        fds: Vec<OwnedFd>,
    ) -> Result<Answer, RpcError> {
        let params = params.unwrap_or_else(|| json!({}));
        if !params.is_object() {
            return Err(RpcError::params(format!("{whole}: its params go by name, in an object")));
        }
        let applications = &self.shared.applications;
        let unknown = || {
            let names = applications.keys().map(|name| format!("{name}.…"));
            let names: Vec<String> = ["plug.hello".to_owned()].into_iter().chain(names).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            RpcError::no_method(whole, &names)
        };
        let (application, method) = split_method(whole).ok_or_else(unknown)?;
        if application == "plug" {
            return if method == "hello" { self.hello(&params) } else { Err(unknown()) };
        }
        if !self.has_said_hello {
            return Err(RpcError::new(NO_HELLO, "say plug.hello first, with your versions"));
        }
        let (name, application) = applications.get_key_value(application).ok_or_else(unknown)?;
        if !self.sessions.contains_key(name) {
            self.sessions.insert(name.clone(), application.connect(&self.peer)?);
        }
        let session = self.sessions.get_mut(name).expect("it is there by now");
        session.call(method, params, fds)
    }

    /// Carries out `plug.hello`: returns the version for the following messages, and the applications.
    fn hello(&mut self, params: &Value) -> Result<Answer, RpcError> {
        let versions = params.get("versions").and_then(Value::as_array);
        let versions =
            versions.ok_or_else(|| RpcError::params("plug.hello: say your versions, as in [1]"))?;
        if !versions.contains(&json!(VERSION)) {
            return Err(RpcError::new(NO_HELLO, format!("this server speaks version {VERSION}")));
        }
        self.has_said_hello = true;
        let applications: Vec<&String> = self.shared.applications.keys().collect();
        let name = &self.shared.name;
        let result = json!({ "version": VERSION, "name": name, "applications": applications });
        Ok(result.into())
    }
}
