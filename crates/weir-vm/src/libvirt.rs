//! The monitor of a libvirt domain, by libvirt's own client, `virsh`.
//!
//! A child process is used and not libvirt's library: a static binary cannot load the library, and the input and output
//! of a child can be limited like other data from outside. Each command is a `virsh qemu-monitor-command`. Events are
//! the lines of a `virsh qemu-monitor-event --loop`, which is started before the first command and ended together with
//! the [`Virsh`]. It does not report when it has connected to libvirt, so the first events may be missed, on a busy
//! host for some 100 ms. A caller that needs them must read the state again a while later.
//!
//! Source: virsh(1), of libvirt 8.5 and later (`--pass-fds`, `--xpath`).

mod child;
pub mod output;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::VmError;
use crate::limits::{QMP_COMMAND_TIME_MAX, QMP_LINE_BYTES_MAX, VIRSH_EVENTS_MAX, VIRSH_TIME_MAX};
use crate::qmp::{Event, Lines, Monitor, printable};
pub use child::VirshOutput;
use child::{EventChild, run};
use output::{answer, attribute, event};

/// The address of the system's libvirt.
pub const SYSTEM_URI: &str = "qemu:///system";

/// A libvirt domain.
#[derive(Clone, Debug)]
pub struct Domain {
    virsh: PathBuf,
    uri: String,
    name: String,
}

impl Domain {
    /// Names a domain by its name, UUID or number, in the libvirt at `uri`; `None`: the system's.
    #[must_use]
    pub fn new(uri: Option<&str>, name: &str) -> Domain {
        let uri = uri.unwrap_or(SYSTEM_URI).to_owned();
        Domain { virsh: "virsh".into(), uri, name: name.to_owned() }
    }

    /// Uses another program in place of virsh, with the same command line.
    #[must_use]
    pub fn by(self, virsh: PathBuf) -> Domain {
        Domain { virsh, ..self }
    }

    /// Returns the name, UUID or number of the domain.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `virsh --quiet --connect URI ARGUMENTS` with an empty standard input, in the locale C.
    ///
    /// # Errors
    /// [`VmError::NoVirsh`]; [`VmError::TimeOut`] after `limit`, which names `command`;
    /// [`VmError::Protocol`] for more output than [`VIRSH_BYTES_MAX`](crate::limits::VIRSH_BYTES_MAX). Errors of
    /// virsh itself are in the result.
    pub fn run(
        &self,
        command: &'static str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<VirshOutput, VmError> {
        run(&mut self.command(arguments, None)?, limit, command)
    }

    /// Tells whether the domain has a QEMU, paused or not.
    ///
    /// # Errors
    /// [`VmError::NotRunning`] if libvirt does not know the domain, or the error of virsh.
    pub fn has_qemu(&self) -> Result<bool, VmError> {
        let said = self.run("domstate", &["domstate", &self.name], VIRSH_TIME_MAX)?;
        if !said.is_success {
            return Err(self.failed("virsh domstate", &said));
        }
        Ok(!["shut off", "crashed"].contains(&said.output.trim()))
    }

    /// Returns the path of the socket of the channel whose target has this name.
    ///
    /// # Errors
    /// [`VmError::NotRunning`], [`VmError::NoChannel`], or the error of virsh.
    pub fn channel(&self, target: &str) -> Result<PathBuf, VmError> {
        let xpath = format!("//channel[target/@name='{target}']/source/@path");
        let arguments = ["dumpxml", &self.name, "--xpath", &xpath];
        let said = self.run("dumpxml", &arguments, VIRSH_TIME_MAX)?;
        if !said.is_success && !said.errors.contains("XPath") {
            return Err(self.failed("virsh dumpxml", &said));
        }
        let path = attribute(&said.output);
        path.ok_or_else(|| VmError::NoChannel {
            domain: self.name.clone(),
            target: target.to_owned(),
        })
    }

    /// Connects to the domain's monitor.
    ///
    /// # Errors
    /// [`VmError::NotRunning`], [`VmError::NoVirsh`], or the error of virsh.
    pub fn connect(&self) -> Result<Virsh, VmError> {
        // A domain that is off is looked for repeatedly. This check takes one process; without it, three would be
        // needed.
        if !self.has_qemu()? {
            let (domain, text) = (self.name.clone(), "it is shut off".to_owned());
            return Err(VmError::NotRunning { domain, text });
        }
        let events = ["qemu-monitor-event", &self.name, "--loop"];
        let events = EventChild::spawn(self.command(&events, None)?)?;
        let lines = Lines::new(QMP_LINE_BYTES_MAX);
        let mut virsh = Virsh {
            domain: self.clone(),
            events,
            lines,
            queue: VecDeque::new(),
            version: String::new(),
        };
        let version = virsh.execute("query-version", json!({}), QMP_COMMAND_TIME_MAX)?;
        let part = |key| version.pointer(&format!("/qemu/{key}")).and_then(Value::as_u64);
        if let (Some(major), Some(minor), Some(micro)) =
            (part("major"), part("minor"), part("micro"))
        {
            virsh.version = format!("{major}.{minor}.{micro}");
        }
        Ok(virsh)
    }

    /// Returns a command line of virsh with these arguments, and a descriptor as its standard input.
    fn command(
        &self,
        arguments: &[&str],
        input: Option<BorrowedFd<'_>>,
    ) -> Result<std::process::Command, VmError> {
        let mut command = std::process::Command::new(&self.virsh);
        command.args(["--quiet", "--connect", &self.uri]).args(arguments);
        // The error messages are parsed, so they must not be translated.
        command.env("LC_ALL", "C");
        match input {
            None => command.stdin(std::process::Stdio::null()),
            Some(fd) => {
                let own = fd.try_clone_to_owned().map_err(VmError::NoVirsh)?;
                command.stdin(std::process::Stdio::from(own))
            }
        };
        Ok(command)
    }

    fn failed(&self, doing: &'static str, said: &VirshOutput) -> VmError {
        let text = printable(said.errors.trim());
        let is_absent = ["failed to get domain", "domain is not running", "Domain not found"];
        if is_absent.iter().any(|words| said.errors.contains(words)) {
            return VmError::NotRunning { domain: self.name.clone(), text };
        }
        VmError::Libvirt { doing, text }
    }
}

/// A connection to QEMU's monitor through virsh.
#[derive(Debug)]
pub struct Virsh {
    domain: Domain,
    events: EventChild,
    lines: Lines,
    queue: VecDeque<Event>,
    version: String,
}

impl Virsh {
    /// Reads a part of the output of the child that reports events.
    fn fill(&mut self) -> Result<(), VmError> {
        let is_over = self.events.read(&mut self.lines)?;
        while let Some(line) = self.lines.next() {
            self.queue.extend(event(&line));
            if self.queue.len() > VIRSH_EVENTS_MAX {
                self.queue.pop_front();
            }
        }
        if is_over || self.lines.is_too_long() {
            let text = "it has ended".to_owned();
            return Err(VmError::Libvirt { doing: "virsh qemu-monitor-event", text });
        }
        Ok(())
    }
}

impl Monitor for Virsh {
    fn version(&self) -> &str {
        &self.version
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn execute_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Value, VmError> {
        let text = json!({"execute": command, "arguments": arguments}).to_string();
        let mut all = vec!["qemu-monitor-command", &self.domain.name];
        if descriptor.is_some() {
            // The descriptor is the child's standard input, so no other child can inherit it by accident.
            all.extend(["--pass-fds", "0"]);
        }
        all.push(&text);
        let mut virsh = self.domain.command(&all, descriptor)?;
        let said = run(&mut virsh, limit + VIRSH_TIME_MAX, command)?;
        if !said.is_success {
            return Err(self.domain.failed("virsh qemu-monitor-command", &said));
        }
        answer(command, &said.output)
    }

    fn wait_event(
        &mut self,
        limit: Duration,
        is_wanted: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError> {
        let start = Instant::now();
        let mut filled = None;
        loop {
            if let Some(at) = self.queue.iter().position(&mut *is_wanted) {
                return Ok(self.queue.remove(at));
            }
            let has_filled = filled.is_some();
            filled.unwrap_or(Ok(()))?;
            let left = limit.saturating_sub(start.elapsed());
            if has_filled {
                if left.is_zero() {
                    return Ok(None);
                }
                child::wait_readable(self.events.as_fd(), left)?;
            }
            filled = Some(self.fill());
        }
    }
}

#[cfg(test)]
mod tests;
