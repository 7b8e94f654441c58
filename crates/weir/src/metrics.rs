//! The endpoint for Prometheus: `GET /metrics`, one request per connection, one connection at a time.
//!
//! Source: RFC 9112 for requests and responses. No HTTP library is used: those that were examined wait without limit
//! for a client that sends nothing, or start a thread for each client. With the latter, any client that can reach the
//! port could use up the descriptors of the process.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weir_metrics::TEXT_FORMAT;

/// How long a client may take to send its request, and then again to receive the response.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest request, with its headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// An address that is bound but not served yet.
pub struct Address {
    address: SocketAddr,
    listener: TcpListener,
}

impl Address {
    /// Binds the address. For port 0, the kernel chooses a free port, which is printed on standard error.
    pub fn bind(address: SocketAddr) -> Result<Address> {
        let failed = || {
            format!(
                "--metrics {address}: cannot listen there; is it an address of this machine, and its port free?"
            )
        };
        let listener = TcpListener::bind(address).with_context(failed)?;
        let bound = listener.local_addr().with_context(failed)?;
        if address.port() == 0 {
            eprintln!("weir: metrics at http://{bound}/metrics");
        }
        Ok(Address { address: bound, listener })
    }

    /// Serves this text on a new thread, which inherits the current capabilities of the calling thread. Everybody who
    /// can connect can read the text.
    pub fn serve(self, text: impl Fn() -> String + Send + 'static) -> Result<Metrics> {
        let Address { address, listener } = self;
        let listening = || format!("--metrics {address}");
        let own = listener.try_clone().with_context(listening)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let client = Client::default();
        let (over, served) = (Arc::clone(&is_over), client.clone());
        let thread = thread::Builder::new()
            .name("weir-metrics".into())
            .spawn(move || {
                while !over.load(Ordering::Acquire) {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            // Without a duplicate descriptor, the connection could not be shut down, so it is refused.
                            if served.comes(&stream).is_ok() && !over.load(Ordering::Acquire) {
                                // An error means that the client has left or takes too long.
                                let _ = answer(&stream, &text);
                            }
                            served.goes();
                        }
                        // The process may be out of descriptors, for example. Retry after a pause.
                        Err(_) => thread::sleep(Duration::from_millis(100)),
                    }
                }
            })
            .context("starting a thread")?;
        Ok(Metrics { listener: own, is_over, client, thread: Some(thread) })
    }
}

/// The endpoint. Dropping it closes it.
pub struct Metrics {
    listener: TcpListener,
    is_over: Arc<AtomicBool>,
    client: Client,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Serves this text at this address. Everybody who can connect there can read the text.
    pub fn serve(
        address: SocketAddr,
        text: impl Fn() -> String + Send + 'static,
    ) -> Result<Metrics> {
        Address::bind(address)?.serve(text)
    }
}

/// The connection that is served now. Clones share it.
#[derive(Clone, Default)]
struct Client(Arc<Mutex<Option<TcpStream>>>);

impl Client {
    fn comes(&self, stream: &TcpStream) -> io::Result<()> {
        *self.lock() = Some(stream.try_clone()?);
        Ok(())
    }

    fn goes(&self) {
        *self.lock() = None;
    }

    /// Shuts the connection down, so that a blocked read or write returns.
    fn cut_off(&self) {
        if let Some(stream) = self.lock().as_ref() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // This ends a blocked accept(2); the next call ends a blocked read or write of a client that hangs.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.client.cut_off();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Reads a request, and sends the response.
fn answer(mut stream: &TcpStream, text: impl FnOnce() -> String) -> io::Result<()> {
    let request = read_request(stream)?;
    let (status, body) = match request.split_ascii_whitespace().collect::<Vec<_>>()[..] {
        ["GET", "/metrics", ..] => ("200 OK", text()),
        ["GET", ..] => ("404 Not Found", "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET /metrics\n".to_owned()),
    };
    let (kind, length) = (TEXT_FORMAT, body.len());
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let (whole, end) = (head + &body, Instant::now() + PATIENCE);
    let mut rest = whole.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(rest)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            count => rest = &rest[count..],
        }
    }
    stream.shutdown(Shutdown::Write)
}

/// Reads a request with its headers, and returns its first line.
fn read_request(mut stream: &TcpStream) -> io::Result<String> {
    let (mut request, end) = (Vec::new(), Instant::now() + PATIENCE);
    let mut bytes = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if request.len() > REQUEST_BYTES_MAX {
            return Err(ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut bytes)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => request.extend(&bytes[..count]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Returns the time that is left until `end`; an error if no time is left.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer to this request.
    fn asked(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).expect("it listens");
        client.write_all(request).expect("a request");
        client.shutdown(Shutdown::Write).expect("its end");
        let _ = answer(&listener.accept().expect("a client").0, || "one 1\n".to_owned());
        let mut text = String::new();
        let _ = client.read_to_string(&mut text);
        text
    }

    #[test]
    fn requests_get_their_answers_and_anything_else_an_end() {
        let text = asked(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\none 1\n"),
            "{text}"
        );
        assert!(asked(b"GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(asked(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        for broken in [&b""[..], b"GET /metrics", &[b'x'; 20_000]] {
            assert_eq!(asked(broken), "");
        }
    }

    #[test]
    fn an_endpoint_whose_address_has_gone_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.try_clone().expect("a descriptor");
        let thread = thread::spawn(move || listener.accept().map(drop));
        // As its drop does: no packet is needed for that.
        thread::sleep(Duration::from_millis(20));
        rustix::net::shutdown(&own, rustix::net::Shutdown::Both).expect("it listens");
        assert!(thread.join().expect("no panic").is_err());
    }

    #[test]
    fn a_client_that_says_nothing_is_waited_for_so_long_and_no_longer() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let _client = TcpStream::connect(listener.local_addr().unwrap()).expect("it listens");
        let begin = Instant::now();
        assert!(answer(&listener.accept().expect("a client").0, String::new).is_err());
        assert!(begin.elapsed() < 10 * PATIENCE, "{:?}", begin.elapsed());
    }
}
