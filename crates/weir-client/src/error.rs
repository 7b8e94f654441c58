//! Why a feed could not be opened, changed or closed.

use thiserror::Error;
use weir_consumer::ConsumerError;
use weir_plug::PlugError;
use weir_ring::RingError;

/// Why something that a daemon was asked for was not done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection failed, or the daemon refused.
    #[error(transparent)]
    Plug(#[from] PlugError),
    /// The received memory is not a ring that can be read safely.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A ring of the host's cannot be had in this guest.
    #[error(transparent)]
    Region(Box<dyn std::error::Error + Send + Sync>),
    /// A consumer was moved to other rings so often that its wake page has no line left for more.
    #[error("a consumer reads {0} rings in its life; close the feed and open it again")]
    TooManyChanges(usize),
    /// No name of a source.
    #[error(
        "'host:{0}': write host:SOURCE, host:SOURCE@2/4 or host:SOURCE@q2, with a source of the daemon's file"
    )]
    Name(String),
    /// The daemon has no such source for this user.
    #[error("{0}: the daemon has no such source for you; `weir status` lists those that there are")]
    NoSource(String),
    /// The daemon closed the feed, and says why.
    #[error("the daemon closed the feed: {0}")]
    Gone(String),
    /// The daemon answered something else than was asked.
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

/// The kernel's answer alone where there is one, for a message that names the path already; else as [`error_text`].
#[must_use]
pub fn reason_text(error: &ClientError) -> String {
    match error {
        ClientError::Plug(PlugError::Os { source, .. }) => source.to_string(),
        other => error_text(other),
    }
}

/// An error and its causes, on one line: the text of an error does not have that of its source.
#[must_use]
pub fn error_text(error: &dyn std::error::Error) -> String {
    match error.source() {
        None => error.to_string(),
        Some(cause) => format!("{error}: {}", error_text(cause)),
    }
}
