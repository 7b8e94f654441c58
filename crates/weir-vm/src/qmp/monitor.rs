//! Carries out commands of QEMU's.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use serde_json::Value;

use super::message::Event;
use crate::error::VmError;

/// Carries out QMP commands: a [`Qmp`](super::Qmp) socket, or another way to the same QEMU, such as libvirt's.
pub trait Monitor {
    /// Carries out one command and gives its answer.
    ///
    /// # Errors
    /// [`VmError::Refused`] where QEMU says no; anything else means that the monitor is of no use any more, or that
    /// the command may or may not have been carried out.
    fn execute(
        &mut self,
        command: &'static str,
        arguments: Value,
        limit: Duration,
    ) -> Result<Value, VmError> {
        self.execute_with(command, arguments, None, limit)
    }

    /// The same, of a command that takes a descriptor: QEMU gets one that is open like this.
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

    /// A descriptor that becomes readable when events have come, beside those that came with an answer; `None`: events
    /// are to be asked for from time to time.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// QEMU's version, such as `7.2.22`.
    fn version(&self) -> &str;

    /// Takes the oldest event that is wanted, and leaves the others; `None` if none has come within the limit. A
    /// monitor without events waits.
    ///
    /// # Errors
    /// As [`execute`](Monitor::execute), but nothing is refused.
    fn wait_event(
        &mut self,
        limit: Duration,
        is_wanted: &mut dyn FnMut(&Event) -> bool,
    ) -> Result<Option<Event>, VmError>;
}
