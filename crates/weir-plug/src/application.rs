//! The interface between a server and an application.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;

use crate::message::RpcError;
use crate::peer::Peer;

/// An application of a server.
pub trait Application: Send + Sync {
    /// Returns the prefix of the application's methods: lower-case letters. The prefix `plug` is reserved for the
    /// framework.
    fn name(&self) -> &str;

    /// Creates a session for a peer that calls the application for the first time. The session has all state for the
    /// peer.
    ///
    /// # Errors
    /// The error that the peer gets as the answer.
    fn connect(&self, peer: &Arc<Peer>) -> Result<Box<dyn Session>, RpcError>;
}

/// The state of an application for one peer. It is dropped when the connection ends, for whatever reason. Dropping it
/// must release everything that the application has for the peer.
pub trait Session: Send {
    /// Carries out a method. The calls of a connection come one after the other, on a thread of its own. Descriptors
    /// that the method does not take are closed.
    ///
    /// # Errors
    /// The error that the peer gets as the answer.
    fn call(
        &mut self,
        method: &str,
        params: Value,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, RpcError>;
}

/// The answer to a call.
#[derive(Debug, Default)]
pub struct Answer {
    /// The result.
    pub result: Value,
    /// Descriptors that are sent with the result.
    pub descriptors: Vec<OwnedFd>,
}

impl From<Value> for Answer {
    fn from(result: Value) -> Answer {
        Answer { result, descriptors: Vec::new() }
    }
}
