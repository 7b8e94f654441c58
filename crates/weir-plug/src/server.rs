//! Connections of a server: admission, requests, and their end.

mod connection;

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use crate::application::Application;
use crate::credentials::{Credentials, Who};
use crate::error::PlugError;
use crate::limits;
use crate::message::{BUSY, Message, RpcError};
use crate::peer::{self, Outgoing, Peer};
use crate::transport::{Transport, UnixTransport};
use crate::wire;
use connection::{Connection, Placed};

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct ServerLimits {
    /// Most connections at a time.
    pub connections: usize,
    /// Most connections of one user.
    pub connections_of_a_user: usize,
    /// Most messages that are read from a connection in a second.
    pub messages_per_second: u32,
    /// Longest message, in bytes.
    pub message_bytes: u32,
    /// Most descriptors of one message.
    pub descriptors: usize,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            connections: limits::CONNECTIONS_MAX,
            connections_of_a_user: limits::CONNECTIONS_OF_A_USER_MAX,
            messages_per_second: limits::MESSAGES_PER_SECOND_MAX,
            message_bytes: limits::SERVER_MESSAGE_BYTES_MAX,
            descriptors: limits::SERVER_DESCRIPTORS_MAX,
        }
    }
}

/// Counters of a server.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections that were accepted.
    pub connections: AtomicU64,
    /// Connections that were refused because there were too many.
    pub refused: AtomicU64,
    /// Malformed messages, and connections that ended in the middle of a message.
    pub malformed: AtomicU64,
    /// Messages that were read later because too many had come in a second.
    pub delayed: AtomicU64,
}

/// A server that has not been started yet.
pub struct Server {
    name: String,
    limits: ServerLimits,
    applications: BTreeMap<String, Arc<dyn Application>>,
    manages: Manages,
}

/// Tells whether a peer manages the server.
type Manages = Box<dyn Fn(&Credentials) -> bool + Send + Sync>;

impl Server {
    /// Creates a server with this name and version, which it reports to clients.
    #[must_use]
    pub fn new(name: &str, limits: ServerLimits) -> Server {
        let manages: Manages = Box::new(|_| false);
        Server { name: name.to_owned(), limits, applications: BTreeMap::new(), manages }
    }

    /// Reserves [`MANAGERS_MAX`](limits::MANAGERS_MAX) additional places for peers for which `who` returns true, so
    /// that an operator of the server can always connect.
    #[must_use]
    pub fn managed_by(self, who: impl Fn(&Credentials) -> bool + Send + Sync + 'static) -> Server {
        Server { manages: Box::new(who), ..self }
    }

    /// Adds an application.
    ///
    /// # Panics
    /// If its name is not valid, or another application has it.
    #[must_use]
    pub fn with(mut self, application: Arc<dyn Application>) -> Server {
        let name = application.name().to_owned();
        assert!(name != "plug" && !name.is_empty() && !name.contains('.'), "'{name}'");
        assert!(
            self.applications.insert(name, application).is_none(),
            "a name of two applications"
        );
        self
    }

    /// Serves every peer that connects, each on its own threads.
    ///
    /// # Errors
    /// No thread or no descriptor can be created.
    pub fn serve(self, listener: UnixListener) -> Result<Serving, PlugError> {
        let Server { name, limits, applications, manages } = self;
        let own = listener.try_clone().map_err(PlugError::os("keeping a socket"))?;
        let shared = Arc::new(Shared {
            name,
            limits,
            applications,
            manages,
            counters: Counters::default(),
            places: Mutex::default(),
            number: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("plug-accept".into())
            .spawn(move || accept(&listener, &theirs))
            .map_err(PlugError::os("starting a thread"))?;
        Ok(Serving { shared, listener: own, thread: Some(thread) })
    }
}

/// A running server. Dropping it ends all connections, and frees everything that belongs to their sessions.
pub struct Serving {
    shared: Arc<Shared>,
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Returns the server's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Serves the peer at the other end of this transport like a peer that has connected, on this thread and one more,
    /// until the transport ends. When this returns, no thread writes to the transport any more.
    ///
    /// # Errors
    /// [`PlugError::Refused`]: there are too many connections; [`PlugError::Os`]: no thread can be created.
    pub fn serve_over(&self, transport: Arc<dyn Transport>, who: Who) -> Result<(), PlugError> {
        let (connection, queue, placed) = place(&transport, who, &self.shared)?;
        self.shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        let writing = thread::Builder::new().name("plug-write".into()).spawn(move || {
            // An error is not reported: the peer has gone.
            let _ = peer::write(transport.as_ref(), queue);
            drop(placed);
        });
        let writing = writing.map_err(PlugError::os("starting a thread"))?;
        connection.serve();
        let _ = writing.join();
        Ok(())
    }

    /// Returns the number of current connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.places().len()
    }
}

impl Serving {
    /// Ends all connections, and accepts no more. Dropping the value does the same.
    pub fn end(&self) {
        self.take_no_more();
        self.shared.places().iter().for_each(|place| place.peer.hang_up());
        // The threads of the connections end by themselves. Ending a session takes far less than the limit of one
        // second.
        for _ in 0..1000 {
            if self.connections() == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn take_no_more(&self) {
        self.shared.is_over.store(true, Ordering::Release);
        // This wakes the thread that accepts connections.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.take_no_more();
        // Once this thread has ended, no more connections are accepted.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.end();
    }
}

struct Shared {
    name: String,
    limits: ServerLimits,
    applications: BTreeMap<String, Arc<dyn Application>>,
    manages: Manages,
    counters: Counters,
    places: Mutex<Vec<Place>>,
    number: AtomicU64,
    is_over: AtomicBool,
}

/// A connection among those that count against the limits.
struct Place {
    peer: Arc<Peer>,
    /// The user, if the peer is a process.
    uid: Option<u32>,
    /// Whether the connection has one of the additional places for operators.
    is_managers: bool,
}

impl Shared {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    while !shared.is_over.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Err(error) = admit(&stream, shared) {
                    shared.counters.refused.fetch_add(1, Ordering::Relaxed);
                    refuse(&stream, &error);
                }
            }
            // The process has no free descriptor at the moment, or the server ends.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Starts the threads of a connection, if a place is free.
fn admit(stream: &UnixStream, shared: &Arc<Shared>) -> Result<(), RpcError> {
    let internal = |error: io::Error| RpcError::new(BUSY, error.to_string());
    let transport = UnixTransport::new(stream.try_clone().map_err(internal)?).map_err(internal)?;
    let who = Who::Process(transport.credentials().map_err(internal)?);
    let transport: Arc<dyn Transport> = Arc::new(transport);
    let (connection, queue, placed) = place(&transport, who, shared)?;
    let writing = thread::Builder::new().name("plug-write".into());
    writing
        // An error is not reported: the peer has gone.
        .spawn(move || {
            let _ = peer::write(transport.as_ref(), queue);
            drop(placed);
        })
        .map_err(internal)?;
    let reading = thread::Builder::new().name("plug-peer".into());
    reading.spawn(move || connection.serve()).map_err(internal)?;
    shared.counters.connections.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Reserves a place for a connection. Also returns the queue of messages to the peer, and the guard with which the
/// writer keeps the place.
fn place(
    transport: &Arc<dyn Transport>,
    who: Who,
    shared: &Arc<Shared>,
) -> Result<(Connection, Receiver<Outgoing>, Arc<Placed>), RpcError> {
    let number = shared.number.fetch_add(1, Ordering::Relaxed);
    let (uid, may_manage) = match &who {
        Who::Process(credentials) => (Some(credentials.uid), (shared.manages)(credentials)),
        // A guest has only one connection, on its port.
        Who::Guest(_) => (None, false),
    };
    let (peer, queue) = Peer::new(number, who, Arc::clone(transport));
    let peer = Arc::new(peer);
    {
        let mut places = shared.places();
        if shared.is_over.load(Ordering::Acquire) {
            return Err(RpcError::new(BUSY, "the server ends"));
        }
        let of_user = places.iter().filter(|place| uid.is_some() && place.uid == uid).count();
        let ServerLimits { connections, connections_of_a_user, .. } = shared.limits;
        let is_full = places.len() >= connections || of_user >= connections_of_a_user;
        let managers = places.iter().filter(|place| place.is_managers).count();
        let is_managers = is_full && may_manage && managers < limits::MANAGERS_MAX;
        if is_full && !is_managers {
            return Err(RpcError::new(
                BUSY,
                "there are too many connections; end some, or try again",
            ));
        }
        places.push(Place { peer: Arc::clone(&peer), uid, is_managers });
    }
    let placed = Placed::new(shared, number);
    let written = Arc::clone(&placed);
    let connection = Connection::new(Arc::clone(shared), peer, Arc::clone(transport), placed);
    Ok((connection, queue, written))
}

/// Sends the reason to a refused peer, without waiting for it to read.
fn refuse(stream: &UnixStream, error: &RpcError) {
    let _ = stream.set_nonblocking(true);
    if let Ok(own) = stream.try_clone().and_then(UnixTransport::new) {
        let _ = wire::send(&own, &Message::response(Value::Null, Err(error.clone())), &[]);
    }
    let _ = stream.shutdown(Shutdown::Both);
}
