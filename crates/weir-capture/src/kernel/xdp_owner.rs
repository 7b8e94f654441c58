//! Names the owner of an XDP hook in errors.

use crate::error::{CaptureError, bare};
use crate::kernel::hooks::XdpOwner;
use crate::kernel::interface::InterfaceQuery;

/// A refusal because of another XDP program, with the owner of that one; any other error as it is. The calling thread
/// is in the interface's network namespace.
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
