//! Connects commands to the daemon.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use thiserror::Error;
use weir_client::{ClientError, Connection, reason_text};
use weir_plug::PlugError;
use weir_plug::message::NO_METHOD;

use crate::error_words::without_number;

/// Why there is no connection to the daemon.
#[derive(Debug, Error)]
pub enum NoDaemon {
    /// No daemon listens at the socket.
    #[error(
        "no daemon answers at {} ({}); start one with `weir serve` (in a virtual machine: `weir guest`), or say where \
         it listens: --socket PATH", path.display(), without_number(&reason_text(.cause))
    )]
    Absent {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the connection attempt. It is part of the text.
        cause: ClientError,
    },
    /// The socket is the control socket of a capture.
    #[error(
        "a capture listens at {path}, and no daemon; for a capture: `weir status --control {path}`"
    )]
    Capture {
        /// Path of the socket.
        path: PathBuf,
    },
    /// This user may not open the socket or its directory.
    #[error(
        "you may not connect to {}: the socket or its folder is not yours to open; ask for its group, or use sudo",
        path.display()
    )]
    Denied {
        /// Path of the socket.
        path: PathBuf,
        /// The error of the system call.
        source: ClientError,
    },
}

/// Connects to the daemon that listens at `path`.
///
/// # Errors
/// [`NoDaemon`].
pub fn connect(path: &Path) -> Result<Connection, NoDaemon> {
    Connection::open(path).map_err(|source| {
        let path = path.to_owned();
        match &source {
            ClientError::Plug(PlugError::Os { source: error, .. })
                if error.kind() == ErrorKind::PermissionDenied =>
            {
                NoDaemon::Denied { path, source }
            }
            // Daemons have the method of the first message.
            ClientError::Plug(PlugError::Refused(error)) if error.code == NO_METHOD => {
                NoDaemon::Capture { path }
            }
            _ => NoDaemon::Absent { path, cause: source },
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_not_there_has_no_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let error = connect(&folder.path().join("none")).err().expect("nobody listens");
        assert!(matches!(error, NoDaemon::Absent { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("`weir guest`") && text.contains("(No such file or directory);"),
            "{text}"
        );
    }
}
