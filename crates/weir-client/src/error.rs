//! Errors of opening, changing and closing a feed.

use thiserror::Error;
use weir_consumer::ConsumerError;
use weir_plug::PlugError;
use weir_ring::RingError;

/// The reason why a request to a daemon failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection failed, or the daemon refused the request.
    #[error(transparent)]
    Plug(#[from] PlugError),
    /// The received memory is not a ring that can be read safely.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A ring in the host's memory cannot be opened in this guest, or its reader cannot be woken.
    #[error(transparent)]
    Region(Box<dyn std::error::Error + Send + Sync>),
    /// A consumer was moved to other rings so often that its wake page has no free line left.
    #[error("a consumer reads {0} rings in its life; close the feed and open it again")]
    TooManyChanges(usize),
    /// The text does not name a source.
    #[error(
        "'host:{0}': write host:SOURCE, host:SOURCE@2/4 or host:SOURCE@q2, with a source of the daemon's file"
    )]
    Name(String),
    /// The daemon has no such source for this user.
    #[error("{0}: the daemon has no such source for you; `weir status` lists those that there are")]
    NoSource(String),
    /// The daemon closed the feed for the given reason.
    #[error("the daemon closed the feed: {0}")]
    Gone(String),
    /// The daemon's answer does not fit the request.
    #[error("the daemon's answer makes no sense: {0}")]
    Answer(String),
}

impl From<serde_json::Error> for ClientError {
    fn from(error: serde_json::Error) -> ClientError {
        ClientError::Answer(error.to_string())
    }
}

impl From<ConsumerError> for ClientError {
    fn from(error: ConsumerError) -> ClientError {
        match error {
            ConsumerError::Ring(error) => ClientError::Ring(error),
            other => ClientError::Answer(other.to_string()),
        }
    }
}

/// Returns only the kernel's reason if the kernel caused the error, for a message that has the path already; else the
/// same as [`error_text`].
#[must_use]
pub fn reason_text(error: &ClientError) -> String {
    match error {
        ClientError::Plug(PlugError::Os { source, .. }) => source.to_string(),
        other => error_text(other),
    }
}

/// Returns the texts of an error and of its causes on one line. The text of an error does not include that of its
/// cause.
#[must_use]
pub fn error_text(error: &dyn std::error::Error) -> String {
    match error.source() {
        None => error.to_string(),
        Some(cause) => format!("{error}: {}", error_text(cause)),
    }
}
