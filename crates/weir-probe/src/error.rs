//! Errors of commands to the probe.

use thiserror::Error;
use weir_capture::CaptureError;

use crate::core::Refused;

/// The reason why a command was not carried out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The source, subscription or consumer does not exist, or has ended.
    #[error("there is no such source, subscription or consumer, or it has ended")]
    Unknown,
    /// The source ended before the command was carried out.
    #[error("the source has ended")]
    Ended,
    /// The probe was stopped.
    #[error("the probe has been stopped")]
    Stopped,
    /// The engine or the kernel refused; the state is as it was before the command.
    #[error(transparent)]
    Capture(#[from] CaptureError),
}

impl From<Refused<CaptureError>> for ProbeError {
    fn from(refused: Refused<CaptureError>) -> Self {
        match refused {
            Refused::Unknown => ProbeError::Unknown,
            Refused::Ended => ProbeError::Ended,
            Refused::Stopped => ProbeError::Stopped,
            Refused::Failed(error) => ProbeError::Capture(error),
        }
    }
}
