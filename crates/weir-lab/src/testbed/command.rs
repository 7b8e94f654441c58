//! Runs set-up commands with a time limit, and child processes that end with their handle.

use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// An `ip` command takes milliseconds. A command that takes longer than this limit waits for a lock that is not
/// released.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs `ip` with these arguments and waits for it.
pub(crate) fn ip(args: &[&str]) -> Result<()> {
    let text = || format!("ip {}", args.join(" "));
    let child = Command::new("ip")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Spawn { command: text(), source })?;
    let mut child = Running(child);
    if !child.wait_for(LIMIT) {
        return Err(Error::Timeout { command: text(), seconds: LIMIT.as_secs() });
    }
    // The command has ended, so reading does not block. It prints only one line, so the pipe was never full.
    let mut stderr = String::new();
    if let Some(pipe) = child.stderr.as_mut() {
        _ = pipe.read_to_string(&mut stderr);
    }
    match child.0.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Error::Command { command: text(), stderr: stderr.trim().to_owned() }),
        Err(source) => Err(Error::Spawn { command: text(), source }),
    }
}

/// A child process. Dropping the handle kills the child and waits for it, so that a failed test leaves no capture tool
/// that keeps its namespace in use.
#[derive(Debug)]
pub struct Running(pub(crate) Child);

impl Running {
    /// Waits at most `limit` for the child to end. Returns whether it has ended.
    pub fn wait_for(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        let mut nap = Duration::from_micros(200);
        loop {
            match self.0.try_wait() {
                Ok(Some(_)) => return true,
                Err(_) => return false,
                Ok(None) if start.elapsed() >= limit => return false,
                Ok(None) => sleep(nap),
            }
            nap = (nap * 2).min(Duration::from_millis(20));
        }
    }

    /// Sends a signal to the child, such as `libc::SIGINT`, as Ctrl-C does.
    pub fn signal(&mut self, signal: i32) {
        // The process id of a child that was already waited for may belong to another process.
        if let (Ok(None), Ok(pid)) = (self.0.try_wait(), libc::pid_t::try_from(self.0.id())) {
            // SAFETY: takes no pointers. The process is the handle's child: `try_wait` has just
            // found that it is not reaped, and only this handle reaps it, so the id cannot belong
            // to another process.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

impl From<Child> for Running {
    fn from(child: Child) -> Running {
        Running(child)
    }
}

impl Deref for Running {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            _ = self.0.kill();
            _ = self.0.wait();
        }
    }
}
