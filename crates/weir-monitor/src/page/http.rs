//! A small HTTP server: one thread, a bounded number of connections, one request each.
//!
//! The server answers only GET and HEAD, and only if the `Host` is an IP address or `localhost`. Otherwise a web site
//! that makes its own name resolve to this machine (DNS rebinding) could read all answers through its visitor's
//! browser.
//!
//! Source: RFC 9112 for requests and responses. No library is used: the examined ones wait forever for a silent client,
//! or use a thread for each client.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most connections at a time. If another one comes, the oldest is closed: a normal request is answered within a
/// millisecond, so the oldest connection belongs to a client that does not send or does not read.
const CONNECTIONS_MAX: usize = 64;
/// The longest time in which a client must send its request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);
/// The longest time in which a client must read the answer: enough for 64 KiB over a slow link.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// The longest request, with its headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// The longest interval between calls of [`Site::tick`].
const TICK: Duration = Duration::from_millis(250);
/// Headers of every answer. Scripts and styles may only come from this server, other sites may not embed the answers,
/// and browsers may not store them.
const HEADERS: &str = "Cache-Control: no-store\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
    Cross-Origin-Resource-Policy: same-origin\r\n\
    Referrer-Policy: no-referrer\r\n\
    X-Content-Type-Options: nosniff\r\n\
    Connection: close\r\n";

/// The served contents. The thread of the server calls its methods, which must not block.
pub trait Site: Send + 'static {
    /// Returns the answer for a path, which begins with `/` and has no query. Returns `None` if the path does not
    /// exist.
    fn answer(&mut self, path: &str) -> Option<Answer>;

    /// Does periodic work. Called at least four times a second.
    fn tick(&mut self) {}
}

/// A body and its `Content-Type`.
#[derive(Clone)]
pub struct Answer {
    /// The `Content-Type`, such as `text/html; charset=utf-8`.
    pub kind: &'static str,
    /// The body.
    pub body: Arc<[u8]>,
}

/// The server. Dropping it closes its socket and ends its thread.
pub struct Server {
    listener: TcpListener,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server for a site at this address, in a thread with the name `name`.
    ///
    /// # Errors
    /// The address is in use or does not belong to this machine, or the thread cannot be started.
    pub fn serve(address: SocketAddr, name: &str, site: impl Site) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let own = listener.try_clone()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread =
            thread::Builder::new().name(name.into()).spawn(move || run(&listener, &over, site))?;
        Ok(Server { listener: own, is_over, thread: Some(thread) })
    }

    /// Returns the address on which the server listens, with the port that the kernel chose for port 0.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes up the thread that waits for connections.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(listener: &TcpListener, is_over: &AtomicBool, mut site: impl Site) {
    // The connections, in the order in which they were accepted.
    let mut connections: Vec<Connection> = Vec::new();
    let mut next_tick = Instant::now();
    while !is_over.load(Ordering::Acquire) {
        if Instant::now() >= next_tick {
            site.tick();
            next_tick = Instant::now() + TICK;
        }
        let until =
            connections.iter().map(|connection| connection.end).fold(next_tick, Instant::min);
        let ready = wait(listener, &connections, until);
        let mut ready = ready.into_iter();
        let has_new = ready.next().unwrap_or_default();
        // A connection that the client has closed, or that takes too long, is closed without an answer.
        connections.retain_mut(|connection| {
            let is_ready = ready.next().unwrap_or_default();
            let goes_on = !is_ready || connection.advance(&mut site).unwrap_or(false);
            goes_on && Instant::now() < connection.end
        });
        if has_new
            && !is_over.load(Ordering::Acquire)
            && accept(listener, &mut connections).is_err()
        {
            // Probably no file descriptors are left for now.
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Waits until a descriptor is ready, at most until `until`. Returns whether the listener is ready, then the same for
/// each connection.
fn wait(listener: &TcpListener, connections: &[Connection], until: Instant) -> Vec<bool> {
    let mut all = vec![PollFd::new(listener, PollFlags::IN)];
    for connection in connections {
        let flags = match connection.state {
            State::Writes { .. } => PollFlags::OUT,
            State::Reads(_) | State::Closes => PollFlags::IN,
        };
        all.push(PollFd::new(&connection.stream, flags));
    }
    // Round up: otherwise poll would return at once again and again in the last millisecond.
    let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
    let left = Timespec::try_from(left).ok();
    // If a signal interrupted the call, nothing is ready.
    let _ = poll(&mut all, left.as_ref());
    all.iter().map(|one| !one.revents().is_empty()).collect()
}

/// Accepts waiting connections, but only a limited number in each call.
fn accept(listener: &TcpListener, connections: &mut Vec<Connection>) -> io::Result<()> {
    // The limit makes sure that accepted connections are served even if new ones come all the time.
    for _ in 0..CONNECTIONS_MAX / 2 {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // The client has closed the connection already.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        if connections.len() == CONNECTIONS_MAX {
            connections.remove(0);
        }
        let end = Instant::now() + REQUEST_TIME_MAX;
        connections.push(Connection { stream, end, state: State::Reads(Vec::new()) });
    }
    Ok(())
}

/// The connection of a client.
struct Connection {
    stream: TcpStream,
    /// The connection is closed at this time, whatever its state.
    end: Instant,
    state: State,
}

enum State {
    /// Receives the request: its bytes so far.
    Reads(Vec<u8>),
    /// Sends the answer: the answer, and how many of its bytes were written.
    Writes { answer: Vec<u8>, written: usize },
    /// The whole answer is written, and the client's FIN is awaited. If the socket were closed with unread bytes, the
    /// kernel would reset the connection, and the client could lose the answer.
    Closes,
}

impl Connection {
    /// Reads or writes as much as possible without blocking. Returns false once the connection is done.
    fn advance(&mut self, site: &mut impl Site) -> io::Result<bool> {
        loop {
            let result = match &mut self.state {
                State::Reads(request) => {
                    let mut bytes = [0; 2048];
                    match self.stream.read(&mut bytes) {
                        Ok(0) => return Ok(false),
                        Ok(count) => {
                            request.extend(&bytes[..count]);
                            if request.windows(4).any(|four| four == b"\r\n\r\n") {
                                let answer = respond(request, site);
                                self.end = Instant::now() + ANSWER_TIME_MAX;
                                self.state = State::Writes { answer, written: 0 };
                            } else if request.len() > REQUEST_BYTES_MAX {
                                return Ok(false);
                            }
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                }
                State::Writes { answer, written } => match self.stream.write(&answer[*written..]) {
                    Ok(0) => return Ok(false),
                    Ok(count) => {
                        *written += count;
                        if *written == answer.len() {
                            self.stream.shutdown(Shutdown::Write)?;
                            self.state = State::Closes;
                        }
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
                State::Closes => {
                    // Only one read in each call, so that a client that sends endlessly does not occupy the thread.
                    let mut bytes = [0; 2048];
                    match self.stream.read(&mut bytes) {
                        Ok(0) => return Ok(false),
                        Ok(_) => return Ok(true),
                        Err(error) => Err(error),
                    }
                }
            };
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the whole answer to a request whose headers were received. Malformed requests get an answer, too.
pub fn respond(request: &[u8], site: &mut impl Site) -> Vec<u8> {
    let said = |text: &'static str| Answer {
        kind: "text/plain; charset=utf-8",
        body: Arc::from(text.as_bytes()),
    };
    let (status, answer) = match read(request) {
        Ok(path) => match site.answer(path) {
            Some(answer) => ("200 OK", answer),
            None => ("404 Not Found", said("there is nothing here; see /\n")),
        },
        Err(Refusal::Malformed) => ("400 Bad Request", said("this is no request\n")),
        Err(Refusal::Method) => ("405 Method Not Allowed", said("GET or HEAD\n")),
        Err(Refusal::Host) => {
            let text = "this is shown by address only, http://127.0.0.1:PORT/, or as localhost\n";
            ("403 Forbidden", said(text))
        }
    };
    let Answer { kind, body } = answer;
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{allow}{HEADERS}\r\n"
    );
    let mut whole = head.into_bytes();
    if !request.starts_with(b"HEAD ") {
        whole.extend_from_slice(&body);
    }
    whole
}

/// The reason why a request is refused.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    Malformed,
    Method,
    Host,
}

/// Returns the requested path.
fn read(request: &[u8]) -> Result<&str, Refusal> {
    let text = std::str::from_utf8(request).map_err(|_| Refusal::Malformed)?;
    let (head, _) = text.split_once("\r\n\r\n").ok_or(Refusal::Malformed)?;
    let mut lines = head.split("\r\n");
    // Other software could take a bare CR or LF within a line for the end of the line. Source: RFC 9112 section 2.2.
    let is_text = |line: &str| line.chars().all(|letter| !letter.is_control() || letter == '\t');
    if !lines.clone().all(is_text) {
        return Err(Refusal::Malformed);
    }
    let words: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let &[method, target, version] = &words[..] else { return Err(Refusal::Malformed) };
    let mut hosts = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("host").then(|| value.trim())
    });
    match (version, hosts.next(), hosts.next()) {
        // A request without a `Host` does not come from a browser.
        ("HTTP/1.0", None, _) => {}
        ("HTTP/1.0" | "HTTP/1.1", Some(host), None) if is_this_machine(host) => {}
        ("HTTP/1.0" | "HTTP/1.1", Some(_), None) => return Err(Refusal::Host),
        _ => return Err(Refusal::Malformed),
    }
    if !["GET", "HEAD"].contains(&method) {
        return Err(Refusal::Method);
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if path.starts_with('/') { Ok(path) } else { Err(Refusal::Malformed) }
}

/// Returns whether a `Host` is an IP address or `localhost`. The owner of any other name could make it resolve to this
/// machine.
fn is_this_machine(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, port)) if name.parse::<Ipv6Addr>().is_ok() => ("localhost", port),
        Some(_) => return false,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port_is_good = match port.strip_prefix(':') {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    port_is_good && (name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts its ticks.
    #[derive(Default)]
    struct One(usize);

    impl Site for One {
        fn answer(&mut self, path: &str) -> Option<Answer> {
            let body = match path {
                "/" => Arc::from(b"one\n".as_slice()),
                "/large" => Arc::from(vec![b'x'; 4 << 20]),
                "/ticks" => Arc::from(self.0.to_string().into_bytes()),
                _ => return None,
            };
            Some(Answer { kind: "text/plain", body })
        }

        fn tick(&mut self) {
            self.0 += 1;
        }
    }

    fn server() -> (Server, SocketAddr) {
        let server =
            Server::serve(([127, 0, 0, 1], 0).into(), "test", One::default()).expect("a port");
        let address = server.address().expect("an address");
        (server, address)
    }

    /// The answer to this request.
    fn asked(address: SocketAddr, request: &[u8]) -> String {
        let mut client = TcpStream::connect(address).expect("it listens");
        // Refused in the middle of it.
        let _ = client.write_all(request);
        let mut text = String::new();
        let _ = client.read_to_string(&mut text);
        text
    }

    #[test]
    fn requests_get_their_answers_and_anything_else_an_end() {
        let (_server, address) = server();
        let asked = |request: &[u8]| asked(address, request);
        let text = asked(b"GET / HTTP/1.1\r\nHost: localhost:80\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\none\n"),
            "{text}"
        );
        let text = asked(b"HEAD /?a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
        assert!(text.contains("\r\nContent-Length: 4\r\n") && text.ends_with("\r\n\r\n"), "{text}");
        assert!(asked(b"GET /no HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
        let text = asked(b"POST / HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 3\r\n\r\nabc");
        assert!(text.starts_with("HTTP/1.1 405") && text.ends_with("GET or HEAD\n"), "{text}");
        for malformed in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
            b"GET http://a/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /\n HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.0\r\nAccept: a\nHost: a\r\n\r\n",
            b"GET / HTTP/9\r\nHost: localhost\r\n\r\n",
            b"\xff\r\n\r\n",
        ] {
            assert!(asked(malformed).starts_with("HTTP/1.1 400"), "{malformed:?}");
        }
        assert_eq!(asked(&[b'x'; 20_000]), "");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_are_refused(
            method in "GET|HEAD|P?", target in "/?.{0,20}", version in "HTTP/1.[01]|.{0,9}",
            headers in r"(\r\n(Host: ?)?[\PC]{0,20}){0,3}", rest in any::<Vec<u8>>(),
        ) {
            for request in [
                [format!("{method} {target} {version}{headers}\r\n\r\n").as_bytes(), &rest].concat(),
                [&rest[..], b"\r\n\r\n"].concat(),
            ] {
                let answer = respond(&request, &mut One::default());
                let status = ["200", "400", "403", "404", "405"].iter().find(|status| {
                    answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes())
                });
                prop_assert!(status.is_some());
                prop_assert!(answer.windows(4).any(|four| four == b"\r\n\r\n"));
            }
        }
    }

    #[test]
    fn a_web_site_that_points_its_name_here_reads_nothing() {
        let (_server, address) = server();
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::1].a",
            "1:a",
            "",
        ] {
            let text = asked(address, format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
            assert!(text.starts_with("HTTP/1.1 403") && !text.contains("one\n"), "{host}: {text}");
        }
        for host in ["LocalHost", "127.0.0.1:8080", "192.0.2.7", "[2001:db8::1]:8080", "[::1]"] {
            assert!(is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn no_web_site_may_embed_or_read_an_answer_and_none_is_kept() {
        let (_server, address) = server();
        for path in ["/", "/no"] {
            let text = asked(
                address,
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes(),
            );
            for header in [
                "Content-Security-Policy: default-src 'none'; script-src 'self'; ",
                "Cross-Origin-Resource-Policy: same-origin\r\n",
                "X-Content-Type-Options: nosniff\r\n",
                "Cache-Control: no-store\r\n",
            ] {
                assert!(text.contains(header), "{header}: {text}");
            }
            assert!(!text.contains("Access-Control"), "{text}");
        }
    }

    #[test]
    fn clients_that_say_nothing_or_read_nothing_hold_up_nobody() {
        let (_server, address) = server();
        let connect = || TcpStream::connect(address).expect("it listens");
        let silent: Vec<_> = (0..3 * CONNECTIONS_MAX).map(|_| connect()).collect();
        let deaf: Vec<_> = (0..3 * CONNECTIONS_MAX)
            .map(|_| {
                let mut client = connect();
                client
                    .write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    .expect("a request");
                client
            })
            .collect();
        let text = asked(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(text.ends_with("one\n"), "{text}");
        drop((silent, deaf));
    }

    #[test]
    fn a_client_that_says_nothing_or_little_is_waited_for_so_long_and_no_longer() {
        let (_server, address) = server();
        let begin = Instant::now();
        assert_eq!(asked(address, b"GET"), "");
        assert!(begin.elapsed() >= REQUEST_TIME_MAX / 2, "{:?}", begin.elapsed());
    }

    #[test]
    fn a_large_answer_comes_whole_and_a_dropped_server_is_gone() {
        let (server, address) = server();
        let text = asked(address, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(text.split_once("\r\n\r\n").map(|(_, body)| body.len()), Some(4 << 20));
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }
}
