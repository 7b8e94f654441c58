//! Clients of the control socket, with a thread for each. At the limit, a silent client is disconnected for a new one.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_plug::message::BUSY;

use super::{MESSAGE_TIMEOUT, rpc};
use crate::limits::CLIENTS_MAX;

/// The connected clients.
#[derive(Clone, Default)]
pub struct Clients {
    all: Arc<Mutex<Vec<Arc<Client>>>>,
}

struct Client {
    stream: UnixStream,
    state: Mutex<ClientState>,
}

#[derive(Clone, Copy)]
enum ClientState {
    /// Waiting for a whole message since this time.
    Waits(Instant),
    /// A request of the client is being executed.
    Busy,
    /// Disconnected for another client. No more of its messages are read.
    Gone,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    /// Serves a connection on a thread of its own. `answer` returns the response to a message.
    ///
    /// If there are `CLIENTS_MAX` clients, the client that has been silent for the longest time is disconnected first.
    /// If all are busy, the new client is refused.
    pub fn admit(
        &self,
        stream: UnixStream,
        answer: impl Fn(&[u8]) -> Option<Value> + Send + 'static,
    ) {
        let client =
            Arc::new(Client { stream, state: Mutex::new(ClientState::Waits(Instant::now())) });
        {
            let mut all = locked(&self.all);
            if all.len() >= CLIENTS_MAX && !make_room(&mut all) {
                drop(all);
                let text = format!("{CLIENTS_MAX} others are being served; try again");
                let refusal = rpc::failed(Value::Null, BUSY, &text);
                let _ = client.stream.set_write_timeout(Some(Duration::from_millis(100)));
                let _ = rpc::send(&mut &client.stream, &refusal);
                return;
            }
            all.push(Arc::clone(&client));
        }
        let (clients, own) = (self.clone(), Arc::clone(&client));
        let spawned = thread::Builder::new().name("weir-client".into()).spawn(move || {
            // An error ends the connection. An incomplete message is discarded.
            let _ = own.talk(answer);
            clients.leave(&own);
        });
        if spawned.is_err() {
            self.leave(&client);
        }
    }

    fn leave(&self, client: &Arc<Client>) {
        locked(&self.all).retain(|other| !Arc::ptr_eq(other, client));
    }
}

/// Disconnects the client that has been silent for the longest time. Returns `false` if all are busy.
fn make_room(all: &mut Vec<Arc<Client>>) -> bool {
    let since = |client: &Arc<Client>| match *locked(&client.state) {
        ClientState::Waits(since) => Some(since),
        ClientState::Busy | ClientState::Gone => None,
    };
    loop {
        let waiting = all.iter().enumerate().filter_map(|(at, client)| Some((since(client)?, at)));
        let Some((_, at)) = waiting.min() else { return false };
        let mut state = locked(&all[at].state);
        // The client may have sent a message meanwhile.
        if matches!(*state, ClientState::Waits(_)) {
            *state = ClientState::Gone;
            // The read of the client's thread then returns the end of the stream.
            let _ = all[at].stream.shutdown(Shutdown::Both);
            drop(state);
            all.swap_remove(at);
            return true;
        }
    }
}

impl Client {
    fn talk(&self, answer: impl Fn(&[u8]) -> Option<Value>) -> io::Result<()> {
        let mut stream = &self.stream;
        stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
        stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
        loop {
            let Some(message) = rpc::receive(&mut stream)? else { return Ok(()) };
            {
                let mut state = locked(&self.state);
                if matches!(*state, ClientState::Gone) {
                    return Ok(());
                }
                *state = ClientState::Busy;
            }
            let answer = answer(&message);
            // A client that does not read its response also counts as waiting.
            *locked(&self.state) = ClientState::Waits(Instant::now());
            if let Some(answer) = answer {
                rpc::send(&mut stream, &answer)?;
                let mut state = locked(&self.state);
                if let ClientState::Waits(since) = &mut *state {
                    *since = Instant::now();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask(mut stream: &UnixStream, what: &str) -> Option<Value> {
        rpc::send(&mut stream, &json!(what)).ok()?;
        serde_json::from_slice(&rpc::receive(&mut stream).ok()??).ok()
    }

    #[test]
    fn silent_connections_keep_nobody_out_and_served_ones_stay() {
        let clients = Clients::default();
        let connect = || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            clients.admit(theirs, |message| serde_json::from_slice(message).ok());
            ours
        };
        let silent: Vec<UnixStream> = (0..CLIENTS_MAX).map(|_| connect()).collect();
        for _ in 0..CLIENTS_MAX - 1 {
            let speaks = connect();
            assert_eq!(ask(&speaks, "here"), Some(json!("here")));
            // It ends at once or later; either way the oldest silence goes first.
        }
        assert!(ask(&silent[0], "late").is_none(), "the first was to go");
        let last = connect();
        assert_eq!(ask(&last, "here"), Some(json!("here")));
        assert!(locked(&clients.all).len() <= CLIENTS_MAX);
    }

    #[test]
    fn who_is_being_served_is_not_sent_away() {
        let clients = Clients::default();
        let gate = Arc::new(Mutex::new(()));
        let held = locked(&gate);
        let mut all = Vec::new();
        for _ in 0..CLIENTS_MAX {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let gate = Arc::clone(&gate);
            clients.admit(theirs, move |_| {
                drop(locked(&gate));
                Some(json!("served"))
            });
            rpc::send(&mut &ours, &json!("please")).unwrap();
            all.push(ours);
        }
        let busy = |client: &Arc<Client>| matches!(*locked(&client.state), ClientState::Busy);
        while !locked(&clients.all).iter().all(busy) {
            thread::sleep(Duration::from_millis(1));
        }
        let (more, theirs) = UnixStream::pair().unwrap();
        clients.admit(theirs, |_| None);
        let refusal = rpc::receive(&mut &more).unwrap().unwrap();
        let refusal: Value = serde_json::from_slice(&refusal).unwrap();
        assert_eq!(refusal["error"]["code"], BUSY, "{refusal}");
        drop(held);
        for ours in &all {
            let answer = rpc::receive(&mut &*ours).unwrap().unwrap();
            assert_eq!(answer, json!("served").to_string().as_bytes());
        }
    }
}
