//! The interfaces of a source with a pattern: their shares of a feed's ledger.

use std::sync::Arc;

use weir_capture::{CaptureError, InterfaceLedger};

use super::{Probe, Shared};
use crate::core::{Event, FeedId, SourceId};
use crate::error::ProbeError;

impl Probe {
    /// Returns the share of each interface in the ledger so far of a feed, for a source with a pattern; empty for other
    /// sources. When such a feed is closed together with its source, an event reports the final shares.
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
    /// Reports the final shares of a feed that is closed together with its source.
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
            // If the shares cannot be read, the feed's ledger cannot be read either, and that is reported.
            Ok(_) | Err(_) => {}
        }
    }
}
