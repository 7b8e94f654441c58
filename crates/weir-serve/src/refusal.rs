//! Texts for clients when the probe refuses a request.

use weir_capture::CaptureError;
use weir_capture::error::error_text;
use weir_plug::message::RpcError;
use weir_probe::ProbeError;

use crate::missing::RIGHTS_FROM;

/// Returns the error for a client if the probe has refused a request.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(crate) fn refused(error: ProbeError) -> RpcError {
    RpcError::refused(text(&error))
}

/// Returns the text. Rights are missing to the daemon, even if the client is root.
fn text(error: &ProbeError) -> String {
    match error {
        ProbeError::Capture(CaptureError::NoRights { what, needs }) => {
            format!("{what} needs {needs}, which the daemon lacks; {RIGHTS_FROM}")
        }
        error => error_text(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rights_are_said_to_be_the_daemons() {
        let error = CaptureError::NoRights { what: "the bpf engine".into(), needs: "CAP_BPF" };
        let told = text(&error.into());
        assert!(told.contains("CAP_BPF, which the daemon lacks; run the daemon as root"), "{told}");
        assert!(!told.contains("setcap"), "{told}");
        assert_eq!(text(&ProbeError::Ended), "the source has ended");
    }
}
