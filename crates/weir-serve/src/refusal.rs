//! What the probe refused, as a client is told.

use weir_capture::error::error_text;
use weir_plug::message::RpcError;
use weir_probe::ProbeError;

/// What the probe refused, as a client is told.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn refused(error: ProbeError) -> RpcError {
    RpcError::refused(error_text(&error))
}
