//! Adds the owner of an XDP hook to errors.

use crate::error::{CaptureError, bare};
use crate::kernel::hooks::XdpOwner;
use crate::kernel::interface::InterfaceQuery;

/// Turns [`CaptureError::XdpBusy`] into [`CaptureError::XdpHeld`] if the owner of the attached program is
/// found. Other errors are returned unchanged. The calling thread must be in the interface's network
/// namespace.
#[must_use]
pub fn with_owner(error: CaptureError) -> CaptureError {
    match error {
        CaptureError::XdpBusy { iface, program, id } => {
            let found = InterfaceQuery::new().and_then(|query| query.find(bare(&iface)));
            match found.ok().and_then(|found| XdpOwner::find(found.index, id)) {
                Some(owner) => CaptureError::XdpHeld { iface, program, id, owner },
                None => CaptureError::XdpBusy { iface, program, id },
            }
        }
        other => other,
    }
}
