//! Why a command to the probe was not carried out.

use thiserror::Error;
use weir_capture::CaptureError;

use crate::core::Refused;

/// Why a command was not carried out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// There is no such thing, or not any more.
    #[error("there is no such source, subscription or consumer, or it has ended")]
    Unknown,
    /// The source ended before the command was carried out.
    #[error("the source has ended")]
    Ended,
    /// The probe was stopped.
    #[error("the probe has been stopped")]
    Stopped,
    /// The engine or the kernel refused; everything is as it was before.
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
