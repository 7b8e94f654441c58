//! Methods of `capture` for guests: the list of guests, detaching and attaching a guest, and the copy of a feed that a
//! guest reads.

use std::sync::Arc;

use serde_json::json;
use weir_client::protocol::{GuestAttach, GuestDetach, InRegion};
use weir_plug::message::RpcError;
use weir_plug::{Answer, Who};
use weir_ring::limits::DATA_BLOCKS_MIN;

use super::{Client, answer, done};
use crate::board::tell_gone;
use crate::guests::Guest;
use crate::reader::Reader;
use crate::rights;

impl Client {
    /// Returns the guest, if this client is one.
    pub(super) fn guest(&self) -> Option<Arc<Guest>> {
        match &self.who {
            Who::Guest(name) => self.daemon.guests.get(name),
            Who::Process(_) => None,
        }
    }

    /// Refuses a client that may not manage guests.
    fn manages(&self) -> Result<(), RpcError> {
        let refused = || RpcError::refused("only root and the daemon's user may; run it as root");
        if rights::manages(&self.who) { Ok(()) } else { Err(refused()) }
    }

    pub(super) fn guests(&self) -> Result<Answer, RpcError> {
        self.manages()?;
        answer(json!({ "guests": self.daemon.guests() }))
    }

    pub(super) fn detach_guest(&self, detach: &GuestDetach) -> Result<Answer, RpcError> {
        self.manages()?;
        self.daemon.detach_guest(&detach.name, detach.within_ms)?;
        done()
    }

    pub(super) fn attach_guest(&self, attach: &GuestAttach) -> Result<Answer, RpcError> {
        self.manages()?;
        self.daemon.attach_guest(&attach.name)?;
        done()
    }

    /// Creates a copy of a feed in the guest's region, which the guest reads.
    pub(super) fn copy(&self, reader: &Arc<Reader>) -> Result<InRegion, RpcError> {
        let unknown = || RpcError::refused("the daemon's file has no such guest any more");
        let guest = self.guest().ok_or_else(unknown)?;
        let blocks = reader.mib.max(DATA_BLOCKS_MIN).ilog2();
        let (probe, subscription) = (&self.daemon.probe, reader.claim.subscription);
        let (copy, at) = guest.copy(probe, subscription, &reader.reads(), 1 << blocks)?;
        reader.set_copy(copy)?;
        let failed = Arc::downgrade(reader);
        reader.listen(move |reason| {
            failed.upgrade().iter().for_each(|reader| tell_gone(reader, Some(reason)));
        });
        Ok(at)
    }
}
