//! Errors of messages and connections.

use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::message::RpcError;

/// An error in the communication of two processes.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlugError {
    /// The kernel refused an action.
    #[error("{doing}")]
    Os {
        /// The action that failed.
        doing: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The other side has ended the connection.
    #[error("the other side has ended the connection")]
    Closed,
    /// No answer came in time.
    #[error("there was no answer within {0:?}")]
    NoAnswer(Duration),
    /// The other side answered with an error.
    #[error(transparent)]
    Refused(#[from] RpcError),
    /// The other side broke the protocol.
    #[error("the other side broke the protocol: {0}")]
    Protocol(String),
}

impl PlugError {
    /// Returns a closure for `map_err` that makes an error of the kernel.
    pub fn os(doing: impl Into<String>) -> impl FnOnce(io::Error) -> PlugError {
        let doing = doing.into();
        move |source| PlugError::Os { doing, source }
    }
}
