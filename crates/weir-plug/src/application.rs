//! The interface of an application that is served.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde_json::Value;

use crate::message::RpcError;
use crate::peer::Peer;

/// An application of a server.
pub trait Application: Send + Sync {
    /// The name in front of its methods: lower-case letters. `plug` is the framework's.
    fn name(&self) -> &str;

    /// A peer calls for the first time. State for the peer lives in the session.
    ///
    /// # Errors
    /// Whatever the peer is to be told instead.
    fn connect(&self, peer: &Arc<Peer>) -> Result<Box<dyn Session>, RpcError>;
}

/// A peer's side of an application. It is dropped when the connection ends, however it does: nothing may be left
/// of the peer behind that.
pub trait Session: Send {
    /// Carries out a method. A connection's calls come one after another, on a thread of the connection's own.
    /// Descriptors that it does not take are closed.
    ///
    /// # Errors
    /// The message for the peer.
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
    /// Descriptors that are sent beside it.
    pub descriptors: Vec<OwnedFd>,
}

impl From<Value> for Answer {
    fn from(result: Value) -> Answer {
        Answer { result, descriptors: Vec::new() }
    }
}
