//! A failure of a call: a result code of the header, and a text.

use std::ffi::c_int;

use weir_client::{ClientError, error_text};
use weir_plug::PlugError;
use weir_ring::RingError;

/// `enum weir_result` of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    End = -1,
    Interrupted = -2,
    Argument = -3,
    Daemon = -4,
    NoSource = -5,
    Refused = -6,
    Gone = -7,
    Unsupported = -8,
    System = -9,
    Corrupt = -10,
    Internal = -11,
}

/// The reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub text: String,
}

impl Failure {
    pub fn argument(text: impl Into<String>) -> Failure {
        Failure { code: Code::Argument, text: text.into() }
    }

    pub fn unsupported(text: impl Into<String>) -> Failure {
        Failure { code: Code::Unsupported, text: text.into() }
    }

    pub fn result(&self) -> c_int {
        self.code as c_int
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let code = match &error {
            ClientError::Plug(PlugError::Refused(_)) | ClientError::TooManyChanges(_) => {
                Code::Refused
            }
            ClientError::Plug(_) => Code::Daemon,
            ClientError::Ring(RingError::Os { .. }) => Code::System,
            ClientError::Name(_) => Code::Argument,
            ClientError::NoSource(_) => Code::NoSource,
            ClientError::Gone(_) => Code::Gone,
            _ => Code::Corrupt,
        };
        let text = match &error {
            ClientError::NoSource(name) => {
                format!(
                    "host:{name}: the daemon has no such source for you; `weir status` lists those that there are, and \
                     weir_list_sources() in a program"
                )
            }
            ClientError::Plug(PlugError::Os { .. }) => {
                format!(
                    "{}; start `weir serve`, or name its socket in the options or in $WEIR_SOCKET",
                    error_text(&error)
                )
            }
            _ => error_text(&error),
        };
        Failure { code, text }
    }
}

impl From<RingError> for Failure {
    fn from(error: RingError) -> Failure {
        ClientError::from(error).into()
    }
}
