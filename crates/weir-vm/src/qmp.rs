//! QEMU's monitor (QMP) over a Unix socket.
//!
//! The protocol is small: the greeting, commands, answers and events are each one line of JSON. The other end is not
//! trusted: it may be stopped, may not be QEMU, or may be controlled by its guest. So every call has a time limit, the
//! sizes of messages and of queued events are limited, and a connection on which anything that is not QMP has come is
//! not used any more.
//!
//! Source: QEMU, docs/interop/qmp-spec.rst.

mod lines;
mod message;
mod monitor;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use serde_json::{Value, json};

use crate::error::VmError;
use crate::limits::{QMP_EVENTS_BYTES_MAX, QMP_LINE_BYTES_MAX};
pub(crate) use lines::Lines;
pub use message::Event;
pub(crate) use message::{Message, parse, printable};
pub use monitor::Monitor;

/// A connection to QEMU's monitor.
#[derive(Debug)]
pub struct Qmp {
    socket: OwnedFd,
    lines: Lines,
    /// The events that were not taken yet, each with the length of its message in bytes.
    events: VecDeque<(usize, Event)>,
    events_bytes: usize,
    lost_events: u64,
    next_id: u64,
    version: String,
    /// A part of a command was sent, or bytes have come that are not QMP: the meaning of later bytes is not known.
    is_broken: bool,
}

impl Qmp {
    /// Connects to the socket of a `-qmp unix:PATH,server=on,wait=off` option.
    ///
    /// # Errors
    /// [`VmError::Connect`], [`VmError::NotConnected`]; [`VmError::MonitorBusy`] if another program is connected; the
    /// errors of [`negotiate`](Qmp::negotiate).
    pub fn connect(path: &Path, limit: Duration) -> Result<Qmp, VmError> {
        let failed = |errno: Errno| match errno {
            // The queue of connections is full. A blocking socket would wait forever.
            Errno::AGAIN => VmError::MonitorBusy { path: path.to_owned() },
            errno => VmError::not_connected(path, errno.into()),
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed)?;
        rustix::net::connect(&socket, &address).map_err(failed)?;
        Qmp::negotiate(socket, limit).map_err(|error| match error {
            VmError::TimeOut { command: GREETING, .. } => {
                VmError::MonitorBusy { path: path.to_owned() }
            }
            other => other,
        })
    }

    /// Takes a connected stream socket, reads QEMU's greeting, and enters the command mode, within `limit`.
    ///
    /// # Errors
    /// [`VmError::Protocol`], [`VmError::TimeOut`], [`VmError::Closed`], [`VmError::Socket`], [`VmError::Refused`].
    pub fn negotiate(socket: OwnedFd, limit: Duration) -> Result<Qmp, VmError> {
        let mut qmp = Qmp {
            socket,
            lines: Lines::new(QMP_LINE_BYTES_MAX),
            events: VecDeque::new(),
            events_bytes: 0,
            lost_events: 0,
            next_id: 1,
            version: String::new(),
            is_broken: false,
        };
        let start = Instant::now();
        let call = Call { command: GREETING, start, limit };
        match qmp.receive(&call)? {
            Some(Message::Greeting { version }) => qmp.version = version,
            Some(_) => return Err(VmError::Protocol { what: "no greeting comes first" }),
            None => return Err(call.time_out()),
        }
        qmp.execute("qmp_capabilities", json!({}), limit.saturating_sub(start.elapsed()))?;
        Ok(qmp)
    }

    /// Returns the number of events that were discarded because too many had not been taken.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.lost_events
    }

    /// Returns the oldest event; `None` if none has come within `limit`, which may be zero.
    ///
    /// # Errors
    /// As [`Monitor::wait_event`].
    pub fn next_event(&mut self, limit: Duration) -> Result<Option<Event>, VmError> {
        self.wait_event(limit, &mut |_| true)
    }

    /// Sends a complete line, with the descriptor attached to its first byte. If that fails, the connection is broken.
    fn send(
        &mut self,
        call: &Call,
        mut line: &[u8],
        mut descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), VmError> {
        self.is_broken = true;
        while !line.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let fds = descriptor.map(|fd| [fd]);
            if let Some(fds) = &fds {
                control.push(SendAncillaryMessage::ScmRights(fds));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(&self.socket, &[IoSlice::new(line)], &mut control, flags) {
                Ok(sent) => (line, descriptor) = (&line[sent..], None),
                Err(Errno::AGAIN) => {
                    if !self.wait_for(PollFlags::OUT, call)? {
                        return Err(call.time_out());
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    return Err(VmError::Closed { command: call.command });
                }
                Err(errno) => return Err(call.failed(errno)),
            }
        }
        self.is_broken = false;
        Ok(())
    }

    /// Returns the next message that is not an event; `None` if none is complete within the limit.
    fn receive(&mut self, call: &Call) -> Result<Option<Message>, VmError> {
        loop {
            while let Some(message) = self.next_buffered()? {
                if message.is_some() {
                    return Ok(message);
                }
                // Checked after each event, so that an endless stream of events does not extend the wait.
                if call.left().is_zero() {
                    return Ok(None);
                }
            }
            if !self.fill(call)? {
                return Ok(None);
            }
        }
    }

    /// Takes the next of the received lines. `Some(None)`: the line was an event, which is queued now, or was empty.
    fn next_buffered(&mut self) -> Result<Option<Option<Message>>, VmError> {
        // After bytes that are not QMP, the meaning of later bytes is not known.
        let Some(line) = self.lines.next().filter(|_| !self.is_broken) else {
            return if self.lines.is_too_long() {
                Err(self.broken("a message that is too long"))
            } else {
                Ok(None)
            };
        };
        if line.trim_ascii().is_empty() {
            return Ok(Some(None));
        }
        match parse(&line) {
            Ok(Message::Event(event)) => {
                self.queue(line.len(), event);
                Ok(Some(None))
            }
            Ok(message) => Ok(Some(Some(message))),
            Err(what) => Err(self.broken(what)),
        }
    }

    /// Reads the available bytes, or waits for some. Returns false if the limit is over.
    fn fill(&mut self, call: &Call) -> Result<bool, VmError> {
        let mut buffer = [0u8; 16 << 10];
        match rustix::net::recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) | Err(Errno::CONNRESET) => {
                self.is_broken = true;
                Err(VmError::Closed { command: call.command })
            }
            Ok((_, bytes)) => {
                self.lines.push(&buffer[..bytes]);
                Ok(true)
            }
            Err(Errno::AGAIN) => self.wait_for(PollFlags::IN, call),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(call.failed(errno)),
        }
    }

    /// Waits until the socket is ready. Returns false if the limit is over before that.
    fn wait_for(&self, ready: PollFlags, call: &Call) -> Result<bool, VmError> {
        loop {
            let left = call.left();
            let limit = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
            match rustix::event::poll(&mut [PollFd::new(&self.socket, ready)], Some(&limit)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(call.failed(errno)),
            }
        }
    }

    fn queue(&mut self, bytes: usize, event: Event) {
        self.events.push_back((bytes, event));
        self.events_bytes += bytes;
        while self.events_bytes > QMP_EVENTS_BYTES_MAX {
            let Some((bytes, _)) = self.events.pop_front() else { break };
            self.events_bytes -= bytes;
            self.lost_events += 1;
        }
    }

    fn take_event(&mut self, is_wanted: &mut dyn FnMut(&Event) -> bool) -> Option<Event> {
        let at = self.events.iter().position(|(_, event)| is_wanted(event))?;
        let (bytes, event) = self.events.remove(at)?;
        self.events_bytes -= bytes;
        Some(event)
    }

    fn broken(&mut self, what: &'static str) -> VmError {
        self.is_broken = true;
        VmError::Protocol { what }
    }

    fn check(&self, command: &'static str) -> Result<(), VmError> {
        if self.is_broken { Err(VmError::Closed { command }) } else { Ok(()) }
    }
}

impl Monitor for Qmp {
    fn version(&self) -> &str {
        &self.version
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn execute_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Value, VmError> {
        self.check(command)?;
        let call = Call { command, start: Instant::now(), limit };
        let id = self.next_id;
        self.next_id += 1;
        let mut line = json!({"execute": command, "arguments": arguments, "id": id}).to_string();
        line.push('\n');
        self.send(&call, line.as_bytes(), descriptor)?;
        loop {
            match self.receive(&call)? {
                // The answer to an earlier command, whose wait was given up.
                Some(message) if message.id().is_some_and(|answered| answered < id) => {}
                Some(Message::Return { id: answered, value }) if answered == id => {
                    return Ok(value);
                }
                Some(Message::Error { id: answered, class, text })
                    if answered.is_none_or(|answered| answered == id) =>
                {
                    return Err(VmError::Refused { command, class, text });
                }
                Some(_) => return Err(self.broken("an answer to no command")),
                None => return Err(call.time_out()),
            }
        }
    }

    fn wait_event(
        &mut self,
        limit: Duration,
        is_wanted: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError> {
        let call = Call { command: EVENTS, start: Instant::now(), limit };
        let mut has_looked = false;
        loop {
            // First come the events that were received together with the answer to a command: for them, the socket does
            // not become readable again.
            while let Some(message) = self.next_buffered()? {
                // The answer to an earlier command, whose wait was given up.
                let is_late = |message: Message| message.id().is_some_and(|id| id < self.next_id);
                if !message.is_none_or(is_late) {
                    return Err(self.broken("an answer to no command"));
                }
            }
            if let Some(event) = self.take_event(is_wanted) {
                return Ok(Some(event));
            }
            self.check(EVENTS)?;
            let is_over = has_looked && call.left().is_zero();
            if is_over || !self.fill(&call)? {
                return Ok(None);
            }
            has_looked = true;
        }
    }
}

impl AsFd for Qmp {
    /// Returns the socket, for a loop that waits for several descriptors: it is readable when more data has come.
    /// Events that came together with answers are queued already: so call [`next_event`](Qmp::next_event) until it
    /// returns none, and then wait.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The names of waits that are not commands.
const GREETING: &str = "greeting";
const EVENTS: &str = "events";

/// A call and its time limit.
#[derive(Clone, Copy)]
struct Call {
    command: &'static str,
    start: Instant,
    limit: Duration,
}

impl Call {
    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.start.elapsed())
    }

    fn time_out(&self) -> VmError {
        let limit_ms = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
        VmError::TimeOut { command: self.command, limit_ms }
    }

    fn failed(&self, errno: Errno) -> VmError {
        VmError::Socket { command: self.command, source: errno.into() }
    }
}

#[cfg(test)]
mod tests;
