//! Texts for clients whose requests are refused.

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

/// Returns the error for a source that does not exist or that the client may not open. It is the same for both, except
/// for root of the host, who sees all sources: `is_hidden_from_root` tells that the file does not allow root.
pub(crate) fn no_source(name: &str, is_hidden_from_root: bool) -> RpcError {
    let name: String = name.chars().take(64).collect();
    if is_hidden_from_root {
        return RpcError::refused(format!(
            "'{name}' is there, but the daemon's file does not allow root: add \"root\" to its users, then send it \
             SIGHUP"
        ));
    }
    RpcError::refused(format!(
        "there is no source '{name}' that you may open; `weir status` lists those that there are"
    ))
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

    #[test]
    fn only_root_of_the_host_learns_that_a_source_is_there() {
        let root = no_source("eth0", true).message;
        assert!(root.contains("'eth0' is there") && root.contains("add \"root\""), "{root}");
        let other = no_source("eth0", false).message;
        assert!(other.contains("there is no source 'eth0' that you may open"), "{other}");
    }
}
