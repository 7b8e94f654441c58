//! One request to a container engine: HTTP over a Unix socket.
//!
//! Requests are HTTP/1.0: the engine sends its answer without chunks, and then closes the connection (RFC 1945). A few
//! lines of code suffice for this; an HTTP library with a runtime of its own is not needed.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::limits::{ANSWER_BYTES_MAX, ANSWER_TIME_MAX};

/// A failed request.
#[derive(Debug, Error)]
pub enum ApiError {
    /// No process listens at the socket.
    #[error("no container engine answers at {}", path.display())]
    NoEngine {
        /// The engine's socket.
        path: PathBuf,
    },
    /// This process may not open the socket.
    #[error("{}: permission denied; run as root, or as a user of the socket's group (docker)", path.display())]
    NoRights {
        /// The socket.
        path: PathBuf,
    },
    /// The engine does not know the requested object: status 404.
    #[error("no such container")]
    NotFound,
    /// The engine answers with a status other than 200 and 404.
    #[error("the container engine at {} answers with status {status}", path.display())]
    Status {
        /// The engine's socket.
        path: PathBuf,
        /// The HTTP status.
        status: u16,
    },
    /// The answer is not that of a container engine.
    #[error("{}: this is not the answer of a container engine: {what}", path.display())]
    Malformed {
        /// The socket.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// The connection failed.
    #[error("asking the container engine at {}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Requests `path` from the engine at `socket`, and parses the JSON of its answer.
///
/// # Errors
/// [`ApiError`]. An answer that is too long or cut off is malformed. One that is too late is `Io` with `TimedOut`.
pub fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, ApiError> {
    let answer = exchange(socket, path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ApiError::NoEngine { path: socket.to_owned() }
        }
        io::ErrorKind::PermissionDenied => ApiError::NoRights { path: socket.to_owned() },
        _ => ApiError::Io { path: socket.to_owned(), source },
    })?;
    let malformed = |what: &str| ApiError::Malformed { path: socket.to_owned(), what: what.into() };
    if answer.len() as u64 > ANSWER_BYTES_MAX {
        return Err(malformed("it is too long"));
    }
    let (status, body) = parse(&answer).map_err(malformed)?;
    match status {
        200 => serde_json::from_slice(body).map_err(|error| malformed(&error.to_string())),
        404 => Err(ApiError::NotFound),
        _ => Err(ApiError::Status { path: socket.to_owned(), status }),
    }
}

/// Makes a request and returns the answer. Stops reading when the answer exceeds `ANSWER_BYTES_MAX`; the result is then
/// a little longer than that.
fn exchange(socket: &Path, path: &str) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    let mut stream = connect(socket, deadline)?;
    // The request is written in one piece. Otherwise the server may answer, and close the connection, before the
    // request ends.
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = [0; 16 << 10];
    while answer.len() as u64 <= ANSWER_BYTES_MAX {
        // The deadline is for the whole answer: an engine that sends a byte from time to time cannot delay us further.
        stream.set_read_timeout(Some(time_left(deadline)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => answer.extend_from_slice(&piece[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// Connects to an engine. [`UnixStream::connect`] would have no time limit: it waits while other connections fill the
/// queue of the listener.
fn connect(socket: &Path, deadline: Instant) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(socket)?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let stream = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    let stream = UnixStream::from(stream);
    loop {
        // This limit also applies to the wait for the queue. Source: `unix_stream_connect`, net/unix/af_unix.c.
        stream.set_write_timeout(Some(time_left(deadline)?))?;
        match rustix::net::connect(&stream, &address) {
            Ok(()) => return Ok(stream),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the time until the deadline, which is not zero.
fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(left).ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Returns the status and the body of an answer.
fn parse(answer: &[u8]) -> Result<(u16, &[u8]), &'static str> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("it has no header")?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| "its header is not UTF-8")?;
    let body = &answer[end + 4..];
    let mut lines = head.split("\r\n");
    let first = lines.next().filter(|line| line.starts_with("HTTP/1.")).ok_or("it is no HTTP/1")?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or("it has no status")?;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        let length = value.trim();
        if name.eq_ignore_ascii_case("content-length") && length != body.len().to_string() {
            return Err("its length is not its Content-Length");
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err("it is sent in chunks, which HTTP/1.0 does not have");
        }
    }
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use serde_json::Value;

    /// Result of `get` with an engine that sends these bytes and hangs up.
    fn answered(answer: &[u8]) -> Result<Value, ApiError> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let answer = answer.to_owned();
        let engine = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 256];
            let length = stream.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /version HTTP/1.0\r\n"));
            // A client that has read enough hangs up.
            let _ = stream.write_all(&answer);
        });
        let got = get(&socket, "/version");
        engine.join().unwrap();
        got
    }

    #[test]
    fn an_answer_is_read() {
        let got = answered(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\": 17}").unwrap();
        assert_eq!(got["a"], 17);
        let missing = answered(b"HTTP/1.1 404 Not Found\r\n\r\n{\"message\":\"no\"}");
        assert!(matches!(missing, Err(ApiError::NotFound)), "{missing:?}");
        let broken = answered(b"HTTP/1.1 500 Oops\r\n\r\n");
        assert!(matches!(broken, Err(ApiError::Status { status: 500, .. })), "{broken:?}");
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let huge =
            [b"HTTP/1.0 200 OK\r\n\r\n\"", &vec![b'a'; ANSWER_BYTES_MAX as usize][..]].concat();
        for (bad, what) in [
            (&b""[..], "no header"),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n", "no header"),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\"", "not its Content-Length"),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}{}", "not its Content-Length"),
            (b"HTTP/1.0 200 OK\r\n\r\n{\"a\"", "EOF"),
            (b"HTTP/1.0 200 OK\r\n\r\n<html>", "expected value"),
            (b"HTTP/1.0 twice\r\n\r\n{}", "no status"),
            (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "no HTTP"),
            (b"\xff\xfe\r\n\r\n", "not UTF-8"),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
                "chunks",
            ),
            (&huge, "too long"),
        ] {
            match answered(bad) {
                Err(ApiError::Malformed { what: said, .. }) if said.contains(what) => {}
                other => panic!("{what}: {other:?}"),
            }
        }
        // Nesting that would overflow the stack of a parser without a depth limit.
        let deep = [b"HTTP/1.0 200 OK\r\n\r\n", &vec![b'['; 1 << 20][..]].concat();
        assert!(matches!(answered(&deep), Err(ApiError::Malformed { .. })));
    }

    #[test]
    fn nobody_at_the_socket_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let asked = || get::<Value>(&socket, "/version");
        assert!(matches!(asked(), Err(ApiError::NoEngine { .. })));
        drop(UnixListener::bind(&socket).unwrap());
        assert!(matches!(asked(), Err(ApiError::NoEngine { .. })));
    }

    #[test]
    fn an_engine_that_is_silent_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let _silent = UnixListener::bind(&socket).unwrap();
        let begin = Instant::now();
        let got = get::<Value>(&socket, "/version");
        let Err(ApiError::Io { source, .. }) = got else { panic!("{got:?}") };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() < ANSWER_TIME_MAX * 3, "{:?}", begin.elapsed());
    }

    #[test]
    fn an_engine_that_accepts_nothing_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        // From now on, the queue has one place.
        rustix::net::listen(&listener, 0).unwrap();
        let _first = UnixStream::connect(&socket).unwrap();
        let begin = Instant::now();
        let error = connect(&socket, begin + Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() < ANSWER_TIME_MAX, "{:?}", begin.elapsed());
    }
}
