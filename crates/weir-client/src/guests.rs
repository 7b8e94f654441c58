//! Requests of an operator to a daemon about its guests.

use std::time::Duration;

use serde_json::{Value, json};
use weir_plug::limits::PATIENCE_MAX;

use crate::connection::Connection;
use crate::error::ClientError;
use crate::protocol::{self, Guest, GuestAttach, GuestDetach};

impl Connection {
    /// Returns the guests in the daemon's file, by name. Only for root and the daemon's user.
    ///
    /// # Errors
    /// The daemon's error; [`ClientError::Plug`].
    pub fn guests(&self) -> Result<Vec<Guest>, ClientError> {
        let (answer, _) = self.caller.call::<Value>("guests", &json!({}), &[])?;
        Ok(serde_json::from_value(answer["guests"].clone())?)
    }

    /// Closes a guest's feeds and unplugs its devices. The guest cannot open feeds until it is attached again. Waits
    /// for at most `within` until the guest has released the devices; `None`: for as long as the daemon waits by
    /// default.
    ///
    /// # Errors
    /// The daemon's error: there is no such guest, or it has not released its devices; [`ClientError::Plug`].
    pub fn detach_guest(&self, name: &str, within: Option<Duration>) -> Result<(), ClientError> {
        let within_ms = within.map(protocol::expires_ms);
        let detach = GuestDetach { name: name.to_owned(), within_ms };
        // The daemon's answer comes later than the guest's.
        let limit = within.unwrap_or_default().saturating_add(PATIENCE_MAX);
        self.caller.call_within::<Value>("guest_detach", &detach, &[], limit)?;
        Ok(())
    }

    /// Allows a guest that was detached to open feeds again.
    ///
    /// # Errors
    /// The daemon's error; [`ClientError::Plug`].
    pub fn attach_guest(&self, name: &str) -> Result<(), ClientError> {
        let attach = GuestAttach { name: name.to_owned() };
        self.caller.call::<Value>("guest_attach", &attach, &[])?;
        Ok(())
    }
}
