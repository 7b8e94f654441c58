//! Texts for clients about refusals of the probe.

use weir_capture::error::error_text;
use weir_plug::message::RpcError;
use weir_probe::ProbeError;

/// The error that a client gets where the probe has refused.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn refused(error: ProbeError) -> RpcError {
    RpcError::refused(error_text(&error))
}
