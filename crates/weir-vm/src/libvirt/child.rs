//! Child processes with limits for their run time and output.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::error::VmError;
use crate::limits::VIRSH_BYTES_MAX;
use crate::qmp::Lines;

/// The result of a command of virsh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirshOutput {
    /// Whether the exit status is 0.
    pub is_success: bool,
    /// The standard output.
    pub output: String,
    /// The standard error.
    pub errors: String,
}

/// A child that is killed when this value is dropped.
#[derive(Debug)]
struct ChildGuard(Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        // Fails if the child has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failed(command: &'static str, errno: Errno) -> VmError {
    VmError::Socket { command, source: errno.into() }
}

fn make_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)
}

fn poll_at_most(fds: &mut [PollFd<'_>], limit: Duration) -> Result<(), Errno> {
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
    match poll(fds, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Waits until there is data to read or the stream has ended, at most `limit`.
pub(super) fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> Result<(), VmError> {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll_at_most(&mut fds, limit).map_err(|errno| failed("virsh", errno))
}

/// Runs a child until it ends. A child that has not ended within `limit` is killed.
pub(super) fn run(
    command: &mut Command,
    limit: Duration,
    name: &'static str,
) -> Result<VirshOutput, VmError> {
    let start = Instant::now();
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let time_out = || {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        VmError::TimeOut { command: name, limit_ms }
    };
    let mut child = ChildGuard(command.spawn().map_err(VmError::NoVirsh)?);
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let (mut stdout, mut stderr) = (child.0.stdout.take(), child.0.stderr.take());
    for fd in [stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)] {
        fd.map_or(Ok(()), make_nonblocking).map_err(|errno| failed(name, errno))?;
    }
    while stdout.is_some() || stderr.is_some() {
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(time_out());
        }
        let open = [stdout.as_ref().map(AsFd::as_fd), stderr.as_ref().map(AsFd::as_fd)];
        let open = open.into_iter().flatten();
        let mut fds: Vec<_> = open.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        poll_at_most(&mut fds, left).map_err(|errno| failed(name, errno))?;
        drop(fds);
        take(&mut stdout, &mut output)?;
        take(&mut stderr, &mut errors)?;
    }
    // Its pipes are closed, but the child may still run.
    let pidfd = rustix::process::pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty())
        .map_err(|errno| failed(name, errno))?;
    let status = loop {
        if let Some(status) = child.0.try_wait().map_err(VmError::NoVirsh)? {
            break status;
        }
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(time_out());
        }
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        poll_at_most(&mut fds, left).map_err(|errno| failed(name, errno))?;
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(VirshOutput { is_success: status.success(), output: text(output), errors: text(errors) })
}

/// Reads the available bytes. At its end, the pipe becomes `None`.
fn take(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> Result<(), VmError> {
    let Some(from) = pipe else { return Ok(()) };
    let mut chunk = [0; 16 << 10];
    match from.read(&mut chunk) {
        Ok(0) => *pipe = None,
        Ok(bytes) => into.extend_from_slice(&chunk[..bytes]),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
        Err(error) => return Err(VmError::NoVirsh(error)),
    }
    if into.len() > VIRSH_BYTES_MAX {
        return Err(VmError::Protocol { what: "virsh says too much" });
    }
    Ok(())
}

/// The child that reports events.
#[derive(Debug)]
pub(super) struct EventChild {
    _child: ChildGuard,
    output: ChildStdout,
}

impl EventChild {
    pub(super) fn spawn(mut command: Command) -> Result<EventChild, VmError> {
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        // The child ends with the thread that has started it, also if that thread is killed: otherwise it would wait
        // for events forever.
        let die = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?);
        // SAFETY: between fork and exec, only a system call is made, which allocates no memory and takes no lock.
        unsafe { command.pre_exec(die) };
        let mut child = ChildGuard(command.spawn().map_err(VmError::NoVirsh)?);
        let missing = || VmError::Protocol { what: "virsh has no output" };
        let output = child.0.stdout.take().ok_or_else(missing)?;
        make_nonblocking(output.as_fd()).map_err(|errno| failed("virsh", errno))?;
        Ok(EventChild { _child: child, output })
    }

    /// Reads a part of the available bytes. Returns whether the child has closed its output. It does not read all
    /// bytes, because the child may write as fast as this reads.
    pub(super) fn read(&mut self, lines: &mut Lines) -> Result<bool, VmError> {
        let mut chunk = [0; 16 << 10];
        match self.output.read(&mut chunk) {
            Ok(0) => return Ok(true),
            Ok(bytes) => lines.push(&chunk[..bytes]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(VmError::NoVirsh(error)),
        }
        Ok(false)
    }
}

impl AsFd for EventChild {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }
}
