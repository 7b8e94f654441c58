//! Requests of an operator to a daemon about its guests.

use std::time::Duration;

use serde_json::{Value, json};
use weir_plug::limits::PATIENCE_MAX;

use crate::connection::Connection;
use crate::error::ClientError;
use crate::protocol::{self, Guest, GuestAttach, GuestDetach};

impl Connection {
    /// The guests of the daemon's file, by name. For root and the daemon's user.
    ///
    /// # Errors
    /// The daemon's error; [`ClientError::Plug`].
    pub fn guests(&self) -> Result<Vec<Guest>, ClientError> {
        let (answer, _) = self.caller.call::<Value>("guests", &json!({}), &[])?;
        Ok(serde_json::from_value(answer["guests"].clone())?)
    }

    /// Closes a guest's feeds and unplugs its devices; it opens none until it is attached again. Waits so long for the
    /// guest to release them, or as long as the daemon does of itself.
    ///
    /// # Errors
    /// The daemon's error: there is no such guest, or it has not released its devices; [`ClientError::Plug`].
    pub fn detach_guest(&self, name: &str, within: Option<Duration>) -> Result<(), ClientError> {
        let within_ms = within.map(protocol::expires_ms);
        let detach = GuestDetach { name: name.to_owned(), within_ms };
        // The daemon's answer takes a moment more than the guest's.
        let limit = within.unwrap_or_default().saturating_add(PATIENCE_MAX);
        self.caller.call_within::<Value>("guest_detach", &detach, &[], limit)?;
        Ok(())
    }

    /// A guest that was detached may open feeds again.
    ///
    /// # Errors
    /// The daemon's error; [`ClientError::Plug`].
    pub fn attach_guest(&self, name: &str) -> Result<(), ClientError> {
        let attach = GuestAttach { name: name.to_owned() };
        self.caller.call::<Value>("guest_attach", &attach, &[])?;
        Ok(())
    }
}
