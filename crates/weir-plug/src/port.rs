//! A serial port of a virtual machine as a transport: a byte stream without a beginning or an end that both ends know.
//!
//! A port outlives the programs that use it. Each program, or the guest, may be restarted in the middle of a message,
//! and the bytes of that message are still in the port then. So a guest begins a session with a [`reset`](marks): a
//! mark that data cannot contain, with a random number. The host discards everything before the mark, and answers with
//! the same number; bytes that the guest receives before that answer belong to an earlier session. A restarted host
//! sends a reset of its own, and a guest that gets a reset for which it has not asked begins a new session.
//!
//! A port also carries a *bell*: two bytes that make the other side look for new data elsewhere, without a message.

mod marks;
mod wait;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fs::OFlags;

use crate::limits::PATIENCE_MAX;
use crate::transport::Transport;
use marks::{Decoder, Item};
use wait::{Wait, wait_for};

/// The name by which a guest finds its port: `/dev/virtio-ports/org.weir.0`.
pub const NAME: &str = "org.weir.0";
/// Most bytes that are read or written at a time.
const CHUNK_BYTES: usize = 4096;

/// One end of a port: the guest's character device, or QEMU's socket on the host.
pub struct Port {
    fd: OwnedFd,
    /// Called when the other side rings.
    bell: Box<dyn Fn() + Send + Sync>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Vec<u8>>,
    /// A bell must be sent: by the thread that writes now or next.
    rings: AtomicBool,
    /// Number of sessions that have begun: only the last one reads and writes.
    sessions: AtomicU64,
}

struct Incoming {
    /// Bytes that were read and not decoded yet.
    raw: VecDeque<u8>,
    decoder: Decoder,
    /// The reset that has ended the last session; `None` once the next one begins.
    reset: Option<u64>,
}

/// The next item for a session.
enum Next {
    Byte(u8),
    /// No data is available now.
    Nothing,
    /// A reset has come: the session is over.
    Over,
}

impl Port {
    /// Takes one end. `bell` is called when the other side sends a bell, on the thread that reads; it must not block.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(fd: OwnedFd, bell: impl Fn() + Send + Sync + 'static) -> io::Result<Arc<Port>> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        let incoming = Incoming { raw: VecDeque::new(), decoder: Decoder::default(), reset: None };
        Ok(Arc::new(Port {
            fd,
            bell: Box::new(bell),
            incoming: Mutex::new(incoming),
            outgoing: Mutex::default(),
            rings: AtomicBool::new(false),
            sessions: AtomicU64::new(0),
        }))
    }

    /// Waits for at most `limit` until the guest begins a session, and returns the host's end of it. Data left from
    /// earlier sessions is discarded. Must be called only when the session before has ended, and no thread writes any
    /// more.
    ///
    /// # Errors
    /// The kernel's error; `UnexpectedEof`: QEMU has ended.
    pub fn accept(self: &Arc<Port>, limit: Duration) -> io::Result<Option<PortTransport>> {
        self.begin(&Wait::Limit(Instant::now() + limit))
    }

    /// Like [`accept`](Port::accept), without a time limit, until `end` is readable.
    ///
    /// # Errors
    /// As [`accept`](Port::accept).
    pub fn accept_until(
        self: &Arc<Port>,
        end: BorrowedFd<'_>,
    ) -> io::Result<Option<PortTransport>> {
        self.begin(&Wait::Until(end))
    }

    fn begin(self: &Arc<Port>, wait: &Wait<'_>) -> io::Result<Option<PortTransport>> {
        let Some(number) = self.next_reset(wait, |_| true)? else {
            return Ok(None);
        };
        self.send(|out| marks::reset(out, number))?;
        Ok(Some(PortTransport::new(self)?))
    }

    /// Tells a guest that has a session with an earlier program at this end to begin a new one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn announce(&self) -> io::Result<()> {
        self.send(|out| marks::reset(out, 0))
    }

    /// Begins a session if the host answers within `limit`, and returns the guest's end of it. `number` must be a new
    /// random number each time, and not 0.
    ///
    /// # Errors
    /// The kernel's error; `TimedOut`.
    pub fn connect(self: &Arc<Port>, number: u64, limit: Duration) -> io::Result<PortTransport> {
        let wait = Wait::Limit(Instant::now() + limit);
        self.send(|out| marks::reset(out, number))?;
        match self.next_reset(&wait, |answer| answer == number)? {
            Some(_) => Ok(PortTransport::new(self)?),
            None => Err(ErrorKind::TimedOut.into()),
        }
    }

    /// Sends a bell to the other side. Never blocks: if another thread is writing, that thread sends the bell.
    pub fn ring(&self) {
        self.rings.store(true, Ordering::SeqCst);
        self.ring_if_due();
    }

    /// Sends a bell if one is due and no thread is writing. A writer calls this after it has released the lock: if a
    /// bell was requested meanwhile, either the writer or the thread that has requested it sends the bell. If the port
    /// is full, the next writer sends it.
    fn ring_if_due(&self) {
        while self.rings.load(Ordering::SeqCst) {
            let Ok(mut outgoing) = self.outgoing.try_lock() else { return };
            // If this fails, the next writer fails, too.
            if !matches!(self.write_pending(&mut outgoing), Ok(true)) {
                return;
            }
        }
    }

    fn incoming(&self) -> MutexGuard<'_, Incoming> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a reset whose number `is_one` accepts, and discards everything before it.
    fn next_reset(&self, wait: &Wait<'_>, is_one: impl Fn(u64) -> bool) -> io::Result<Option<u64>> {
        loop {
            let next = self.next(&mut self.incoming())?;
            // Checked after each item: data that keeps coming must not extend the wait.
            match next {
                _ if wait.is_over()? => return Ok(None),
                Next::Byte(_) => {}
                Next::Over => {
                    let mut incoming = self.incoming();
                    let reset = incoming.reset.take();
                    if let Some(number) = reset.filter(|number| is_one(*number)) {
                        // Under the lock, so that later data belongs to the new session, even if a thread still reads
                        // in the old one.
                        self.sessions.fetch_add(1, Ordering::SeqCst);
                        return Ok(Some(number));
                    }
                }
                Next::Nothing => {
                    let port = (self.fd.as_fd(), PollFlags::IN);
                    match wait {
                        Wait::Limit(until) => {
                            let left = until.saturating_duration_since(Instant::now());
                            wait_for(&[port], Some(left))?;
                        }
                        Wait::Until(end) => wait_for(&[port, (*end, PollFlags::IN)], None)?,
                    }
                }
            }
        }
    }

    /// Returns the next byte of a message, if one has come. Calls `bell` for each bell before it.
    fn next(&self, incoming: &mut Incoming) -> io::Result<Next> {
        if incoming.reset.is_some() {
            return Ok(Next::Over);
        }
        let mut has_read = false;
        loop {
            while let Some(byte) = incoming.raw.pop_front() {
                match incoming.decoder.take(byte) {
                    Some(Item::Byte(byte)) => return Ok(Next::Byte(byte)),
                    Some(Item::Bell) => (self.bell)(),
                    Some(Item::Reset(number)) => {
                        incoming.reset = Some(number);
                        return Ok(Next::Over);
                    }
                    None => {}
                }
            }
            if has_read {
                // The chunk had no byte of a message: the caller checks whether to go on.
                return Ok(Next::Nothing);
            }
            let mut chunk = [0; CHUNK_BYTES];
            match rustix::io::read(&self.fd, &mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    incoming.raw.extend(&chunk[..bytes]);
                    has_read = true;
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(Next::Nothing),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends the bytes that `fill` appends, within [`PATIENCE_MAX`].
    fn send(&self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let sent = self.send_alone(fill);
        self.ring_if_due();
        sent
    }

    fn send_alone(&self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let until = Instant::now() + PATIENCE_MAX;
        let mut outgoing = self.outgoing.lock().unwrap_or_else(PoisonError::into_inner);
        fill(&mut outgoing);
        while !self.write_pending(&mut outgoing)? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::WouldBlock.into());
            }
            wait_for(&[(self.fd.as_fd(), PollFlags::OUT)], Some(left))?;
        }
        Ok(())
    }

    /// Writes the pending bytes, as far as the port takes them, and a bell after them if one is due. Returns whether
    /// all of them were written.
    fn write_pending(&self, outgoing: &mut Vec<u8>) -> io::Result<bool> {
        loop {
            // The bell comes after everything else, so that at most one unsent bell is pending.
            if outgoing.is_empty() {
                if !self.rings.swap(false, Ordering::SeqCst) {
                    return Ok(true);
                }
                marks::bell(outgoing);
            }
            match rustix::io::write(&self.fd, outgoing) {
                Ok(bytes) => drop(outgoing.drain(..bytes)),
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A session over a port.
pub struct PortTransport {
    port: Arc<Port>,
    /// Number of this session among those of the port.
    session: u64,
    /// An event descriptor that is written when the session ends, to wake a waiting thread.
    end: OwnedFd,
    is_over: AtomicBool,
    /// Bytes that were decoded and not read yet.
    ready: Mutex<VecDeque<u8>>,
}

impl PortTransport {
    fn new(port: &Arc<Port>) -> io::Result<PortTransport> {
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (is_over, ready) = (AtomicBool::new(false), Mutex::default());
        let (port, session) = (Arc::clone(port), port.sessions.load(Ordering::SeqCst));
        Ok(PortTransport { port, session, end, is_over, ready })
    }

    fn is_over(&self) -> bool {
        let is_last = self.port.sessions.load(Ordering::SeqCst) == self.session;
        self.is_over.load(Ordering::Acquire) || !is_last
    }

    /// Decodes until there is a byte, or the session is over, or `limit` is over: then returns `false`.
    fn fill(&self, ready: &mut VecDeque<u8>, limit: Option<Duration>) -> io::Result<bool> {
        let until = limit.map(|limit| Instant::now() + limit);
        while ready.is_empty() && !self.is_over() {
            let mut incoming = self.port.incoming();
            loop {
                if self.is_over() {
                    break;
                }
                match self.port.next(&mut incoming) {
                    Ok(Next::Byte(byte)) => ready.push_back(byte),
                    Ok(Next::Nothing) => break,
                    Ok(Next::Over) => {
                        self.is_over.store(true, Ordering::Release);
                        break;
                    }
                    Err(error) => {
                        self.is_over.store(true, Ordering::Release);
                        return Err(error);
                    }
                }
                if ready.len() >= CHUNK_BYTES {
                    break;
                }
            }
            drop(incoming);
            if ready.is_empty() && !self.is_over() {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                if left.is_some_and(|left| left.is_zero()) {
                    return Ok(false);
                }
                let fds =
                    [(self.port.fd.as_fd(), PollFlags::IN), (self.end.as_fd(), PollFlags::IN)];
                wait_for(&fds, left)?;
            }
        }
        Ok(true)
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<u8>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for PortTransport {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut ready = self.ready();
        if !self.fill(&mut ready, Some(PATIENCE_MAX))? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = ready.len().min(bytes.len());
        for (to, byte) in bytes.iter_mut().zip(ready.drain(..count)) {
            *to = byte;
        }
        Ok(count)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_over() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let bytes = &bytes[..bytes.len().min(CHUNK_BYTES)];
        self.port.send(|out| marks::data(out, bytes))?;
        Ok(bytes.len())
    }

    fn wait(&self, limit: Option<Duration>) -> io::Result<bool> {
        self.fill(&mut self.ready(), limit)
    }

    fn hang_up(&self) {
        self.is_over.store(true, Ordering::Release);
        // Fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
#[path = "port/tests.rs"]
mod tests;
