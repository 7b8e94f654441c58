//! The interfaces of sources by pattern: their shares of a feed's ledger.

use std::sync::Arc;

use weir_capture::{CaptureError, InterfaceLedger};

use super::{Probe, Shared};
use crate::core::{Event, FeedId, SourceId};
use crate::error::ProbeError;

impl Probe {
    /// The shares of the interfaces in the ledger so far of a feed, of a source by pattern; empty for others. When such
    /// a feed closes with its source, its last ones are told as an event.
    ///
    /// # Errors
    /// [`ProbeError::Unknown`] if the feed is gone, or its counts cannot be read.
    pub fn interfaces(&self, feed: FeedId) -> Result<Vec<InterfaceLedger>, ProbeError> {
        let state = self.shared.lock();
        let known = state.registry.feed(feed).ok_or(ProbeError::Unknown)?;
        let slot = known.slot;
        let thread = state.threads.get(&known.source).ok_or(ProbeError::Unknown)?;
        let control = Arc::clone(&thread.control);
        drop(state);
        Ok(control.interfaces(slot)?)
    }
}

impl Shared {
    /// Of a feed that closes with its source.
    pub(super) fn tell_interfaces(
        &self,
        source: SourceId,
        feed: FeedId,
        interfaces: Result<Vec<InterfaceLedger>, CaptureError>,
    ) {
        match interfaces {
            Ok(interfaces) if !interfaces.is_empty() => {
                (self.lock().listener)(Event::Interfaces(source, feed, interfaces));
            }
            // If they cannot be read, the feed's ledger cannot be read either.
            Ok(_) | Err(_) => {}
        }
    }
}
