//! Peers that break the protocol, and the cleanup after them.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_plug::message::{BUSY, NO_HELLO, NO_JSON, NO_METHOD, NO_PARAMS, NO_REQUEST};
use weir_plug::{
    Answer, Application, Client, Incoming, Peer, PlugError, RpcError, Server, ServerLimits,
    Serving, Session, Who, descriptors, framing, limits, socket,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Echoes, counts its sessions, and keeps peers.
#[derive(Default)]
struct Echo {
    sessions: Arc<AtomicUsize>,
    peers: Mutex<Vec<Arc<Peer>>>,
}

struct Echoing(Arc<AtomicUsize>);

impl Application for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn connect(&self, peer: &Arc<Peer>) -> Result<Box<dyn Session>, RpcError> {
        self.sessions.fetch_add(1, Ordering::SeqCst);
        self.peers.lock().unwrap().push(Arc::clone(peer));
        Ok(Box::new(Echoing(Arc::clone(&self.sessions))))
    }
}

impl Session for Echoing {
    fn call(
        &mut self,
        method: &str,
        params: Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, RpcError> {
        match method {
            "back" => Ok(Answer { result: params, descriptors }),
            "no" => Err(RpcError::refused("not today")),
            "late" => {
                std::thread::sleep(Duration::from_millis(300));
                Ok(params.into())
            }
            _ => Err(RpcError::no_method(method, &["back", "no", "late"])),
        }
    }
}

impl Drop for Echoing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Setup {
    folder: tempfile::TempDir,
    echo: Arc<Echo>,
    serving: Serving,
    _file: socket::SocketFile,
}

fn setup(limits: ServerLimits) -> Setup {
    setup_with(limits, |server| server)
}

fn setup_with(limits: ServerLimits, more: impl FnOnce(Server) -> Server) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let (listener, file) = socket::bind(&folder.path().join("s"), 0o600).unwrap();
    let echo = Arc::new(Echo::default());
    let server = Server::new("test", limits).with(Arc::clone(&echo) as Arc<dyn Application>);
    let serving = more(server).serve(listener).unwrap();
    Setup { folder, echo, serving, _file: file }
}

impl Setup {
    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("s")
    }

    fn raw(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    fn nothing_is_left(&self) {
        within_limit("connections end", || self.serving.connections() == 0);
        assert_eq!(self.echo.sessions.load(Ordering::SeqCst), 0);
    }
}

fn within_limit(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ask(stream: &mut UnixStream, text: &str) -> Value {
    framing::send(stream, text.as_bytes()).unwrap();
    let answer = framing::receive(stream, limits::MESSAGE_BYTES_MAX).unwrap().expect(text);
    serde_json::from_slice(&answer).unwrap()
}

const HELLO: &str =
    r#"{"jsonrpc": "2.0", "id": 1, "method": "plug.hello", "params": {"versions": [1]}}"#;

#[test]
fn calls_are_answered_with_their_descriptors_and_errors_have_their_codes() {
    let setup = setup(ServerLimits::default());
    let client = Client::connect(&setup.path(), "test", drop).unwrap();
    assert_eq!(client.applications(), ["echo"]);
    let file = tempfile::tempfile().unwrap();
    let fds: Vec<OwnedFd> = (0..3).map(|_| file.try_clone().unwrap().into()).collect();
    let answer = client.call("echo.back", json!({ "a": 1 }), &fds, LIMIT).unwrap();
    assert_eq!((answer.result, answer.descriptors.len()), (json!({ "a": 1 }), 3));
    let code = |method: &str, params: Value| match client.call(method, params, &[], LIMIT) {
        Err(PlugError::Refused(error)) => error.code,
        other => panic!("{method}: {other:?}"),
    };
    assert_eq!(code("echo.no", json!({})), weir_plug::message::REFUSED);
    for unknown in ["echo.other", "other.back", "echo", "plug.other", ".", ""] {
        assert_eq!(code(unknown, json!({})), NO_METHOD, "{unknown}");
    }
    assert_eq!(code("echo.back", json!([1])), NO_PARAMS);
    assert_eq!(code("plug.hello", json!({ "versions": [7] })), NO_HELLO);
    // An answer that comes too late is discarded, and the connection can still be used.
    let late = client.call("echo.late", json!({}), &[], Duration::from_millis(20));
    assert!(matches!(late, Err(PlugError::NoAnswer(_))), "{late:?}");
    assert_eq!(client.call("echo.back", json!({}), &[], LIMIT).unwrap().result, json!({}));
    drop(client);
    setup.nothing_is_left();
}

#[test]
fn who_breaks_the_protocol_is_told_or_hung_up_and_nothing_is_left() {
    let setup = setup(ServerLimits::default());
    for (text, code) in [
        ("{", NO_JSON),
        ("[]", NO_REQUEST),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "echo.back"}"#, NO_HELLO),
        (r#"{"jsonrpc": "2.0", "id": 1, "method": "plug.hello"}"#, NO_PARAMS),
    ] {
        assert_eq!(ask(&mut setup.raw(), text)["error"]["code"], code, "{text}");
    }
    let file = tempfile::tempfile().unwrap();
    let with = |count: usize| {
        json!({ "jsonrpc": "2.0", "id": 2, "method": "echo.back", "descriptors": count })
            .to_string()
    };
    let end = |stream: &mut UnixStream| {
        let mut rest = Vec::new();
        // The connection is reset if the server has not read all bytes.
        let _ = stream.read_to_end(&mut rest);
    };
    for round in 0..50 {
        let mut stream = setup.raw();
        ask(&mut stream, HELLO);
        match round % 5 {
            // An absurd length.
            0 => stream.write_all(&[0xff; 8]).unwrap(),
            // Half a message, and then the end of the stream.
            1 => stream.write_all(&[0, 0, 0, 9, b'{']).unwrap(),
            // Descriptors that are announced but not sent.
            2 => {
                framing::send(&mut stream, with(2).as_bytes()).unwrap();
                framing::send(&mut stream, HELLO.as_bytes()).unwrap();
            }
            // More descriptors than were announced.
            3 => {
                framing::send(&mut stream, with(1).as_bytes()).unwrap();
                descriptors::send(&stream, &[file.as_fd(); 2]).unwrap();
            }
            // More descriptors than a server accepts.
            _ => {
                framing::send(&mut stream, with(limits::SERVER_DESCRIPTORS_MAX + 1).as_bytes())
                    .unwrap();
            }
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        end(&mut stream);
    }
    setup.nothing_is_left();
    let malformed = setup.serving.counters().malformed.load(Ordering::Relaxed);
    assert_eq!(malformed, 52);
}

#[test]
fn one_user_has_so_many_connections_and_gets_a_place_when_one_ends() {
    let setup = setup(ServerLimits { connections_of_a_user: 3, ..ServerLimits::default() });
    let connect = || Client::connect(&setup.path(), "test", drop);
    let mut clients: Vec<Client> = (0..3).map(|_| connect().unwrap()).collect();
    match connect().map(drop) {
        Err(PlugError::Refused(error)) => assert_eq!(error.code, BUSY),
        // The server may hang up before the client has written its hello.
        other => assert!(matches!(other, Err(PlugError::Closed)), "{other:?}"),
    }
    clients.pop();
    within_limit("a place", || connect().is_ok());
}

#[test]
fn whoever_manages_the_server_gets_in_when_all_places_are_taken() {
    let few = ServerLimits { connections: 2, ..ServerLimits::default() };
    let is_full = || {
        let setup = setup(few.clone());
        let _two = [0; 2].map(|_| Client::connect(&setup.path(), "test", drop).unwrap());
        Client::connect(&setup.path(), "test", drop).is_err()
    };
    assert!(is_full());
    let own = std::process::id() as i32;
    let setup = setup_with(few.clone(), |server| server.managed_by(move |who| who.pid == own));
    let connect = || Client::connect(&setup.path(), "test", drop);
    let all: Vec<Client> = (0..2 + limits::MANAGERS_MAX).map(|_| connect().unwrap()).collect();
    assert!(connect().is_err(), "those places are not without end either");
    drop(all);
    within_limit("a place", || connect().is_ok());
}

#[test]
fn a_flood_of_messages_is_read_at_the_servers_pace() {
    let setup = setup(ServerLimits { messages_per_second: 50, ..ServerLimits::default() });
    let client = Client::connect(&setup.path(), "test", drop).unwrap();
    let begin = Instant::now();
    for _ in 0..65 {
        client.call("echo.back", json!({}), &[], LIMIT).unwrap();
    }
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
    // It counts as delayed once it is a second ahead of the pace, which a busy machine reaches later.
    within_limit("a delay", || {
        client.call("echo.back", json!({}), &[], LIMIT).unwrap();
        setup.serving.counters().delayed.load(Ordering::Relaxed) > 0
    });
}

#[test]
fn a_peer_that_reads_nothing_holds_up_nobody_and_is_hung_up() {
    let setup = setup(ServerLimits::default());
    let mut stream = setup.raw();
    ask(&mut stream, HELLO);
    ask(&mut stream, r#"{"jsonrpc": "2.0", "id": 2, "method": "echo.back"}"#);
    let peer = Arc::clone(&setup.echo.peers.lock().unwrap()[0]);
    let text = "x".repeat(10_000);
    let begin = Instant::now();
    while peer.notify("echo.note", json!([text]), Vec::new()).is_ok() {
        assert!(begin.elapsed() < LIMIT, "it is not hung up");
    }
    assert!(begin.elapsed() < limits::PATIENCE_MAX, "it was waited for");
    setup.nothing_is_left();
}

#[test]
fn notifications_come_in_order_and_the_end_of_the_server_is_told() {
    let setup = setup(ServerLimits::default());
    let (heard, told) = channel();
    let client = Client::connect(&setup.path(), "test", move |incoming| {
        let _ = heard.send(match incoming {
            Incoming::Notification { params, descriptors, .. } => {
                Some((params[0].as_u64().unwrap(), descriptors.len()))
            }
            Incoming::Ended => None,
        });
    })
    .unwrap();
    client.call("echo.back", json!({}), &[], LIMIT).unwrap();
    let peer = Arc::clone(&setup.echo.peers.lock().unwrap()[0]);
    let Who::Process(who) = peer.who() else { panic!("{:?}", peer.who()) };
    assert_eq!(who.pid, std::process::id() as i32);
    for number in 0..100 {
        let fds = (0..number % 3).map(|_| tempfile::tempfile().unwrap().into()).collect();
        peer.notify("echo.note", json!([number]), fds).unwrap();
    }
    let Setup { serving, echo, .. } = setup;
    for number in 0..100 {
        assert_eq!(told.recv_timeout(LIMIT).unwrap(), Some((number, number as usize % 3)));
    }
    drop(serving);
    assert_eq!(told.recv_timeout(LIMIT), Ok(None));
    assert!(matches!(client.call("echo.back", json!({}), &[], LIMIT), Err(PlugError::Closed)));
    assert!(peer.notify("echo.note", json!([]), Vec::new()).is_err());
    assert_eq!(echo.sessions.load(Ordering::SeqCst), 0);
}

#[test]
fn what_the_protocols_page_shows_is_what_a_server_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    let page = std::fs::read_to_string(page).unwrap();
    let section = page.split("<!-- checked: framework -->").nth(1).expect("its examples");
    let block = section.split("```").nth(1).expect("a block").trim_start_matches("json");
    let setup = setup(ServerLimits::default());
    let mut stream = setup.raw();
    let lines: Vec<&str> = block.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines.len() >= 6 && lines.len().is_multiple_of(2), "{lines:?}");
    for pair in lines.chunks(2) {
        let expected: Value = serde_json::from_str(pair[1]).expect(pair[1]);
        assert_eq!(ask(&mut stream, pair[0]), expected, "{}", pair[0]);
    }
}
