//! Carries out QEMU's commands.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use serde_json::Value;

use super::message::Event;
use crate::error::VmError;

/// A way to carry out QMP commands: a [`Qmp`](super::Qmp) socket, or another connection to the same QEMU, such as
/// libvirt's.
pub trait Monitor {
    /// Carries out one command, and returns its answer.
    ///
    /// # Errors
    /// [`VmError::Refused`] if QEMU refuses the command. After any other error, the monitor cannot be used any more, or
    /// it is not known whether the command was carried out.
    fn execute(
        &mut self,
        command: &'static str,
        arguments: Value,
        limit: Duration,
    ) -> Result<Value, VmError> {
        self.execute_with(command, arguments, None, limit)
    }

    /// Like [`execute`](Monitor::execute), for a command that takes a descriptor: QEMU gets a duplicate of
    /// `descriptor`.
    ///
    /// # Errors
    /// As [`execute`](Monitor::execute).
    fn execute_with(
        &mut self,
        command: &'static str,
        arguments: Value,
        descriptor: Option<BorrowedFd<'_>>,
        limit: Duration,
    ) -> Result<Value, VmError>;

    /// Returns a descriptor that becomes readable when events have come, except for events that came together with an
    /// answer. `None`: the caller must ask for events from time to time.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns QEMU's version, such as `7.2.22`.
    fn version(&self) -> &str;

    /// Takes the oldest event for which `is_wanted` returns true, and leaves the others. Returns `None` if no such
    /// event has come within `limit`. A monitor without events waits for `limit`.
    ///
    /// # Errors
    /// As [`execute`](Monitor::execute), except for a refusal.
    fn wait_event(
        &mut self,
        limit: Duration,
        is_wanted: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError>;
}
