//! Sends messages over UDP.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use super::transport::{Ready, Transport};
use crate::export::Counts;
use crate::limits::{DATAGRAM_TIME_MAX, REFUSAL_TIME_MAX, RETRY_PAUSE_MIN};

/// Pause between two checks for an ICMP error when the export ends.
const FINISH_PAUSE: Duration = Duration::from_millis(5);

/// A collector over UDP.
///
/// A machine on which the port is closed answers with an ICMP error. The kernel reports this error later, and it is
/// assumed to be about the last message. So the flows of a message count as sent only at the next message or tick.
pub(super) struct Udp {
    /// Addresses of the collector's name. When the port is closed at one address, the next one is tried.
    addresses: Vec<SocketAddr>,
    next: usize,
    socket: Option<UdpSocket>,
    /// Whether a message was refused since the last [`Transport::prepare`].
    was_refused: bool,
    /// Nothing is sent before this time. Without the pause, each message over a link that is too slow would block for
    /// [`DATAGRAM_TIME_MAX`].
    paused_until: Instant,
    /// Flows of the last message, for which no error is known yet.
    last_flows: u64,
    counts: Counts,
}

impl Udp {
    /// Chooses the first address to which a socket can be connected.
    ///
    /// # Errors
    /// No socket can be created, or there is no route to any of the addresses.
    pub(super) fn open(addresses: Vec<SocketAddr>) -> io::Result<Udp> {
        let mut udp = Udp {
            addresses,
            next: 0,
            socket: None,
            was_refused: false,
            paused_until: Instant::now(),
            last_flows: 0,
            counts: Counts::default(),
        };
        // Report a lasting error now. The socket itself is created for the first message.
        let mut result = connect(udp.addresses[0]);
        while result.is_err() && udp.next + 1 < udp.addresses.len() {
            udp.next += 1;
            result = connect(udp.addresses[udp.next]);
        }
        result.map(|_| udp)
    }

    /// Counts the flows of the last message as unsent.
    fn refuse_last(&mut self) {
        self.counts.unsent += std::mem::take(&mut self.last_flows);
        self.was_refused = true;
    }

    /// Counts the flows of the last message as sent: no error has become known.
    fn pass_last(&mut self) {
        self.counts.sent += std::mem::take(&mut self.last_flows);
    }

    /// Counts the last message as refused if the kernel has received an ICMP error.
    fn look_for_refusal(&mut self) {
        if let Some(Ok(Some(_))) = self.socket.as_ref().map(UdpSocket::take_error) {
            self.refuse_last();
        }
    }
}

impl Transport for Udp {
    fn prepare(&mut self) -> Ready {
        self.look_for_refusal();
        if Instant::now() < self.paused_until {
            return Ready::No;
        }
        let was_refused = std::mem::take(&mut self.was_refused);
        if was_refused && self.addresses.len() > 1 {
            self.socket = None;
            self.next = (self.next + 1) % self.addresses.len();
        }
        if self.socket.is_some() {
            return if was_refused { Ready::TemplatesLost } else { Ready::Yes };
        }
        self.socket = connect(self.addresses[self.next]).ok();
        if self.socket.is_none() {
            self.was_refused = true;
            return Ready::No;
        }
        Ready::NewSession
    }

    fn send(&mut self, message: &[u8], flows: u64) -> bool {
        // If the kernel has an ICMP error for an earlier message, it returns that error and does not send: try a second
        // time.
        for _ in 0..2 {
            let Some(socket) = &self.socket else { break };
            match socket.send(message) {
                // A message without flows does not settle the message before it: a later ICMP error counts for both.
                Ok(_) if flows == 0 => return true,
                Ok(_) => {
                    self.pass_last();
                    self.last_flows = flows;
                    return true;
                }
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => self.refuse_last(),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.paused_until = Instant::now() + RETRY_PAUSE_MIN;
                    break;
                }
                Err(_) => break,
            }
        }
        // There was no route, no memory or no room in the socket for all that time, so the collector may lack
        // templates.
        self.counts.unsent += flows;
        self.was_refused = true;
        false
    }

    fn settle(&mut self) {
        self.look_for_refusal();
        self.pass_last();
    }

    fn finish(&mut self) {
        let end = Instant::now() + REFUSAL_TIME_MAX;
        while self.last_flows > 0 && Instant::now() < end {
            thread::sleep(FINISH_PAUSE);
            self.look_for_refusal();
        }
        self.settle();
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}

fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_write_timeout(Some(DATAGRAM_TIME_MAX))?;
    socket.connect(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than anything here takes on a loaded machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn the_next_address_is_tried_where_nobody_listens() {
        // A socket that hears only itself keeps the port.
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let nobody = socket.local_addr().unwrap();
        socket.connect(nobody).unwrap();
        let collector = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut udp = Udp::open(vec![nobody, collector.local_addr().unwrap()]).unwrap();
        assert_eq!(udp.prepare(), Ready::NewSession);
        // The answer that nobody listens may be late.
        let start = Instant::now();
        while udp.next == 0 {
            assert!(start.elapsed() < PATIENCE, "no answer that nobody listens at {nobody}");
            assert!(udp.send(b"lost", 3));
            let ready = udp.prepare();
            assert_eq!(ready == Ready::NewSession, udp.next == 1);
        }
        assert!(udp.counts().unsent >= 3);
        let before = udp.counts();
        assert!(udp.send(b"read", 5));
        let mut buffer = [0; 8];
        assert_eq!(collector.recv(&mut buffer).unwrap(), 4);
        assert_eq!(&buffer[..4], b"read");
        udp.finish();
        assert_eq!(udp.counts(), Counts { sent: before.sent + 5, ..before });
    }
}
