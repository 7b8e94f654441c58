//! Sends messages over a TCP connection.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::transport::{Ready, Transport};
use super::unacked::unacked_bytes;
use crate::export::Counts;
use crate::limits::{
    CONNECT_TIME_MAX, DRAIN_TIME_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN, WRITE_TIME_MAX,
};

/// From this number of unacknowledged messages on, each further message is followed by a check which of them have
/// arrived.
const UNDER_WAY_BEFORE_A_LOOK: usize = 16;
/// Pause between two such checks when the export ends.
const DRAIN_PAUSE: Duration = Duration::from_millis(2);

/// A connection to a collector. It is made again after it was lost.
///
/// A flow counts as sent once the collector's machine has acknowledged the last byte of its message. Flows that are
/// unacknowledged when a connection breaks count as unsent: they may still have arrived, and are never sent twice.
pub(super) struct Tcp {
    /// Addresses of the collector's name. After a failed attempt to connect, the next one is tried.
    addresses: Vec<SocketAddr>,
    next: usize,
    connection: Option<Connection>,
    /// Whether the connection was made after the last [`Transport::prepare`] that returned [`Ready::NewSession`].
    is_new: bool,
    retry_at: Instant,
    retry_pause: Duration,
    /// The connection ends if data is not acknowledged for this time.
    user_timeout: Duration,
    counts: Counts,
}

struct Connection {
    stream: TcpStream,
    written_bytes: u64,
    /// Messages that are not acknowledged yet: their end in the stream, and their number of flows.
    under_way: VecDeque<(u64, u64)>,
}

impl Tcp {
    /// Tries each address in turn until one accepts a connection.
    ///
    /// # Errors
    /// None of the addresses accepts a connection: the error of the last attempt.
    pub(super) fn open(addresses: Vec<SocketAddr>, user_timeout: Duration) -> io::Result<Tcp> {
        let mut tcp = Tcp {
            next: 0,
            connection: None,
            is_new: false,
            retry_at: Instant::now(),
            retry_pause: RETRY_PAUSE_MIN,
            user_timeout,
            counts: Counts::default(),
            addresses,
        };
        let mut result = tcp.connect();
        for _ in 1..tcp.addresses.len() {
            if result.is_err() {
                result = tcp.connect();
            }
        }
        result.map(|()| tcp)
    }

    fn connect(&mut self) -> io::Result<()> {
        let address = self.addresses[self.next];
        let timeout_ms = self.user_timeout.as_millis().try_into().unwrap_or(u32::MAX);
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, CONNECT_TIME_MAX)?;
            stream.set_nodelay(true)?;
            // If the collector's machine disappears, missing acknowledgements end the connection.
            rustix::net::sockopt::set_tcp_user_timeout(&stream, timeout_ms)?;
            Ok(Connection { stream, written_bytes: 0, under_way: VecDeque::new() })
        };
        match connect() {
            Ok(connection) => (self.connection, self.is_new) = (Some(connection), true),
            Err(e) => {
                self.next = (self.next + 1) % self.addresses.len();
                self.pause();
                return Err(e);
            }
        }
        Ok(())
    }

    /// Sets the time of the next attempt to connect, and doubles the pause before the one after it.
    fn pause(&mut self) {
        self.retry_at = Instant::now() + self.retry_pause;
        self.retry_pause = (self.retry_pause * 2).min(RETRY_PAUSE_MAX);
    }

    /// Closes the connection, and counts the flows that it leaves unacknowledged as unsent.
    fn lose(&mut self) {
        self.count_arrived();
        let Some(connection) = self.connection.take() else { return };
        self.counts.unsent += connection.under_way.iter().map(|(_, flows)| flows).sum::<u64>();
        self.pause();
    }

    fn count_arrived(&mut self) {
        let flows = self.connection.as_mut().map_or(0, Connection::take_arrived);
        if flows > 0 {
            self.counts.sent += flows;
            self.retry_pause = RETRY_PAUSE_MIN;
        }
    }

    fn has_under_way(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| !connection.under_way.is_empty())
    }
}

impl Transport for Tcp {
    fn prepare(&mut self) -> Ready {
        self.settle();
        if self.connection.is_none() && (Instant::now() < self.retry_at || self.connect().is_err())
        {
            return Ready::No;
        }
        if std::mem::take(&mut self.is_new) { Ready::NewSession } else { Ready::Yes }
    }

    fn send(&mut self, message: &[u8], flows: u64) -> bool {
        let is_written = self.connection.as_mut().is_some_and(|connection| {
            // An incomplete message breaks the stream: a reader could not find the next message.
            connection.write(message).is_ok()
        });
        if !is_written {
            self.counts.unsent += flows;
            self.lose();
            return false;
        }
        if let Some(connection) = &mut self.connection {
            connection.under_way.push_back((connection.written_bytes, flows));
            if connection.under_way.len() >= UNDER_WAY_BEFORE_A_LOOK {
                self.count_arrived();
            }
        }
        true
    }

    fn settle(&mut self) {
        self.count_arrived();
        let error = self.connection.as_ref().map(|connection| connection.stream.take_error());
        if let Some(Ok(Some(_)) | Err(_)) = error {
            self.lose();
        }
    }

    fn finish(&mut self) {
        let end = Instant::now() + DRAIN_TIME_MAX;
        self.settle();
        while self.has_under_way() && Instant::now() < end {
            thread::sleep(DRAIN_PAUSE);
            self.settle();
        }
        self.lose();
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

impl Connection {
    /// Writes the whole message within [`WRITE_TIME_MAX`].
    fn write(&mut self, mut message: &[u8]) -> io::Result<()> {
        let end = Instant::now() + WRITE_TIME_MAX;
        while !message.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_write_timeout(Some(left))?;
            match self.stream.write(message) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    self.written_bytes += bytes as u64;
                    message = &message[bytes..];
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Removes the messages that are acknowledged completely. Returns their number of flows.
    fn take_arrived(&mut self) -> u64 {
        let Ok(unacked) = unacked_bytes(&self.stream) else { return 0 };
        let arrived = self.written_bytes.saturating_sub(unacked);
        let mut sum = 0;
        while let Some(&(end, flows)) = self.under_way.front() {
            if end > arrived {
                break;
            }
            sum += flows;
            self.under_way.pop_front();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::USER_TIMEOUT;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn the_next_address_is_tried_and_flows_are_sent_once_acknowledged() {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let nobody = listen().local_addr().unwrap();
        let listener = listen();
        let mut tcp =
            Tcp::open(vec![nobody, listener.local_addr().unwrap()], USER_TIMEOUT).unwrap();
        assert_eq!((tcp.prepare(), tcp.prepare()), (Ready::NewSession, Ready::Yes));
        assert!(tcp.send(b"message", 7));
        tcp.finish();
        assert_eq!(tcp.counts(), Counts { sent: 7, unsent: 0 });
        let mut text = String::new();
        listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
        assert_eq!(text, "message");
        assert!(Tcp::open(vec![nobody], USER_TIMEOUT).is_err());
    }

    #[test]
    fn what_is_not_acknowledged_at_the_end_is_unsent() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut tcp = Tcp::open(vec![listener.local_addr().unwrap()], USER_TIMEOUT).unwrap();
        let _never_reads = listener.accept().unwrap();
        let message = vec![0; 65_535];
        // Until the other end has no room, and this one holds messages that it cannot send.
        let mut taken = 0;
        while taken < tcp.counts().sent + 4 && tcp.send(&message, 1) {
            assert!(
                taken < 100_000,
                "6 GB went into the buffers of a connection that nobody reads"
            );
            taken += 1;
            tcp.settle();
        }
        tcp.finish();
        let Counts { sent, unsent } = tcp.counts();
        assert!(unsent >= 1 && (sent + unsent == taken || sent + unsent == taken + 1), "{taken}");
    }
}
