//! Attaches programs of other crates to the hooks of an interface.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::TcAttach;
use super::attach::{Attachment, attach_tc, attach_xdp};
use super::clsact::{self, Side};
use super::xdp;
use crate::error::CaptureError;
use crate::kernel::interface::Interface;

/// A program that is attached to a hook. Dropping this value detaches the program; it may still run until
/// [`synchronize`](crate::kernel::rcu::synchronize) returns.
///
/// XDP and tcx links end with the process, for whatever reason it ends. A clsact filter (TC before Linux 6.6) outlives
/// a process that is killed; the next call of [`at_tc`](Self::at_tc) in that network namespace removes the filter.
pub struct AttachedProgram {
    _attachment: Attachment,
}

impl AttachedProgram {
    /// Attaches a program at XDP: in the driver if it supports native XDP, otherwise in the stack (generic XDP).
    ///
    /// # Errors
    /// [`CaptureError::XdpBusy`], [`CaptureError::XdpRefused`], [`CaptureError::Os`].
    pub fn at_xdp(
        interface: &Arc<Interface>,
        program: &Arc<OwnedFd>,
    ) -> Result<AttachedProgram, CaptureError> {
        Ok(AttachedProgram { _attachment: attach_xdp(interface, program)? })
    }

    /// Attaches a program at TC, before all other filters, for sent or for received frames.
    ///
    /// # Errors
    /// [`CaptureError::Attach`], [`CaptureError::Bpf`].
    pub fn at_tc(
        interface: &Arc<Interface>,
        program: &Arc<OwnedFd>,
        sent: bool,
        how: TcAttach,
    ) -> Result<AttachedProgram, CaptureError> {
        clsact::sweep(program.as_fd());
        let side = if sent { Side::Egress } else { Side::Ingress };
        Ok(AttachedProgram { _attachment: attach_tc(interface, program, side, how)? })
    }
}

/// Returns true if the XDP program of this interface runs in the kernel's generic hook, not in the driver.
#[must_use]
pub fn is_generic_xdp(interface: &Interface) -> bool {
    xdp::is_generic(interface.index)
}
