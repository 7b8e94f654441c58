//! Sends and receives a message with its descriptors.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use crate::framing;
use crate::limits::BYTES_OF_A_VALUE;
use crate::message::{Message, NO_REQUEST, RpcError};
use crate::transport::Transport;

/// Implements `Read` and `Write` for a transport.
struct Bytes<'a>(&'a dyn Transport);

impl Read for Bytes<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Bytes<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends a message with these descriptors. Only one thread may send at a time.
///
/// # Errors
/// The transport's error. The transport cannot be used any more then, because a part of the message may have been sent.
pub fn send(transport: &dyn Transport, message: &Message, fds: &[OwnedFd]) -> io::Result<()> {
    let text = message.to_value(fds.len()).to_string();
    framing::send(&mut Bytes(transport), text.as_bytes())?;
    if fds.is_empty() {
        return Ok(());
    }
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    transport.send_descriptors(&fds)
}

/// A received item.
#[derive(Debug)]
pub enum Received {
    /// A message and its descriptors.
    Message(Message, Vec<OwnedFd>),
    /// Bytes that are not a message. Later bytes may be one.
    Malformed(RpcError),
    /// The end of the stream.
    End,
}

/// Receives the next message, of at most `bytes_max` bytes and with at most `descriptors_max` descriptors.
///
/// # Errors
/// The transport's error, and `InvalidData` for a larger message. The transport cannot be used any more then.
pub fn receive(
    transport: &dyn Transport,
    bytes_max: u32,
    descriptors_max: usize,
) -> io::Result<Received> {
    let Some(bytes) = framing::receive(&mut Bytes(transport), bytes_max)? else {
        return Ok(Received::End);
    };
    // Counts values by their first bytes: each value except the first one of an array or object follows a comma.
    let values_max = (bytes_max / BYTES_OF_A_VALUE) as usize;
    let begins_one = |byte: &&u8| matches!(**byte, b',' | b'[' | b'{');
    if bytes.iter().filter(begins_one).count() > values_max {
        let said = format!("this is no request: it has more than {values_max} values");
        return Ok(Received::Malformed(RpcError::new(NO_REQUEST, said)));
    }
    // It is not known how many descriptors belong to a message that cannot be parsed. If there are any, the next read
    // closes them, and its bytes are not a message either.
    let (message, count) = match Message::parse(&bytes) {
        Ok(parsed) => parsed,
        Err(error) => return Ok(Received::Malformed(error)),
    };
    if count > descriptors_max {
        let said = format!("a message with {count} descriptors; {descriptors_max} are allowed");
        return Err(io::Error::new(ErrorKind::InvalidData, said));
    }
    let fds = if count == 0 { Vec::new() } else { transport.receive_descriptors(count)? };
    Ok(Received::Message(message, fds))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use serde_json::json;

    use super::*;
    use crate::UnixTransport;
    use crate::descriptors;

    /// Descriptors of this process that are open for the file.
    fn open_fds(file: &File) -> usize {
        use std::os::unix::fs::MetadataExt;
        let number = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        let own = number(file.metadata().unwrap());
        let all = std::fs::read_dir("/proc/thread-self/fd").unwrap().flatten();
        all.filter(|entry| std::fs::metadata(entry.path()).is_ok_and(|meta| number(meta) == own))
            .count()
    }

    fn note(number: u64) -> Message {
        Message::Notification { method: "a.b".into(), params: Some(json!([number])) }
    }

    #[test]
    fn any_number_of_descriptors_arrives_in_order_with_its_own_message() {
        for count in [0, 1, 127, 128, 129, 300] {
            let (here, there) = UnixStream::pair().unwrap();
            let fds: Vec<OwnedFd> = (0..count)
                .map(|size| {
                    let fd = rustix::fs::memfd_create("plug", rustix::fs::MemfdFlags::CLOEXEC);
                    let fd = fd.unwrap();
                    rustix::fs::ftruncate(&fd, size).unwrap();
                    fd
                })
                .collect();
            let sender = std::thread::spawn(move || {
                let here = UnixTransport::new(here).unwrap();
                send(&here, &note(0), &[]).unwrap();
                send(&here, &note(1), &fds).unwrap();
                send(&here, &note(2), &[]).unwrap();
            });
            let there = UnixTransport::new(there).unwrap();
            for number in 0..3 {
                let received = receive(&there, 1 << 20, 300).unwrap();
                let Received::Message(message, fds) = received else { panic!("{received:?}") };
                assert_eq!(message, note(number));
                let sizes = fds.iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_size as u64);
                let expected = if number == 1 { 0..count } else { 0..0 };
                assert!(sizes.eq(expected), "of {count}");
            }
            sender.join().unwrap();
            assert!(matches!(receive(&there, 1, 1), Ok(Received::End)));
        }
    }

    #[test]
    fn descriptors_that_are_not_as_announced_are_an_error_and_none_is_left_open() {
        let file = tempfile::tempfile().unwrap();
        let fd = file.as_fd();
        // Announced; then runs of descriptors, or bytes without any.
        let refused = |announced: u64, runs: &[usize], plain: &[u8]| {
            let (mut here, there) = UnixStream::pair().unwrap();
            let text = json!({ "jsonrpc": "2.0", "method": "a.b", "descriptors": announced });
            framing::send(&mut here, text.to_string().as_bytes()).unwrap();
            for &run in runs {
                descriptors::send(&here, &vec![fd; run]).unwrap();
            }
            here.write_all(plain).unwrap();
            drop(here);
            let there = UnixTransport::new(there).unwrap();
            let received = receive(&there, 1 << 20, 4);
            assert!(received.is_err(), "{announced}, {runs:?}, {plain:?}: {received:?}");
        };
        for _ in 0..100 {
            refused(u64::MAX, &[1], b"");
            refused(5, &[5], b"");
            refused(1, &[], b"");
            refused(1, &[2], b"");
            refused(2, &[1], b"");
            refused(2, &[1, 2], b"");
            refused(1, &[], b"\x01");
            refused(2, &[1], b"\x01");
        }
        assert_eq!(open_fds(&file), 1);
    }

    #[test]
    fn a_message_takes_no_more_memory_than_its_length_lets_expect() {
        let (here, there) = UnixStream::pair().unwrap();
        let there = UnixTransport::new(there).unwrap();
        let sent = |count: usize| {
            let params = vec!["0"; count].join(",");
            let text = format!(r#"{{"jsonrpc": "2.0", "method": "a.b", "params": [{params}]}}"#);
            framing::send(&mut &here, text.as_bytes()).unwrap();
            receive(&there, 1 << 16, 0).unwrap()
        };
        assert!(matches!(sent(2000), Received::Message(..)));
        assert!(matches!(sent(2500), Received::Malformed(_)));
        let nested = vec![format!("{}0{}", "{\"\":".repeat(20), "}".repeat(20)); 200].join(",");
        let text = format!(r#"{{"jsonrpc": "2.0", "method": "a.b", "params": [{nested}]}}"#);
        framing::send(&mut &here, text.as_bytes()).unwrap();
        assert!(matches!(receive(&there, 1 << 16, 0).unwrap(), Received::Malformed(_)));
        assert!(matches!(sent(2000), Received::Message(..)));
    }

    #[test]
    fn descriptors_that_nobody_announced_are_closed() {
        let file = tempfile::tempfile().unwrap();
        let (mut here, there) = UnixStream::pair().unwrap();
        let there = UnixTransport::new(there).unwrap();
        // The byte of the first run is the length's first.
        for _ in 0..3 {
            framing::send(&mut here, note(0).to_value(0).to_string().as_bytes()).unwrap();
        }
        descriptors::send(&here, &[file.as_fd(); 3]).unwrap();
        drop(here);
        for _ in 0..3 {
            assert!(
                matches!(receive(&there, 1 << 20, 9), Ok(Received::Message(_, fds)) if fds.is_empty())
            );
        }
        assert!(receive(&there, 1 << 20, 9).is_err());
        drop(there);
        assert_eq!(open_fds(&file), 1);
    }
}
