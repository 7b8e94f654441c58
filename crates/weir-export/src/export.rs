//! The interface of an export.

use std::io;
use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;
use weir_flow::FlowRecord;

use crate::patience::Patience;

/// Where frames come from: an interface, and whose it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The interface's name.
    pub interface: String,
    /// The VM, container or pod whose interface it is, where that is known.
    pub owner: Option<Owner>,
}

/// Owner of frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// `container`, `pod`, `vm`, `process` or `netns`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The id of a container, or of a pod.
    pub id: Option<String>,
}

/// Records that are handed over together. Several exports read the same batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The records, in the order in which their flows ended.
    pub records: Vec<FlowRecord>,
    /// By [`FlowRecord::interface`]. It may have more in a later batch, and the same at the same numbers, but for
    /// owners that have become known.
    pub origins: Arc<Vec<Origin>>,
}

impl Batch {
    /// Where a record of this batch comes from.
    #[must_use]
    pub fn origin(&self, record: &FlowRecord) -> Option<&Origin> {
        self.origins.get(record.interface as usize)
    }
}

/// Records of one export so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Handed to the file, the socket or the pipe.
    pub sent: u64,
    /// Those that could not be: the other end was too slow, not there, or refused them.
    pub unsent: u64,
}

/// Why an export cannot go on. Records that it was given and did not send are in its
/// [`Counts::unsent`].
#[derive(Debug, Error)]
#[error("{what}")]
pub struct ExportError {
    /// The failed action, its object, and a remedy.
    pub what: String,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Where records go. Its methods are called by a thread of its own, and may wait.
pub trait Export: Send {
    /// Its name, as a user would write it: `ipfix://collector:4739`.
    fn name(&self) -> String;

    /// Sends these records, or counts them as unsent.
    ///
    /// # Errors
    /// [`ExportError`]: it takes no more. A collector that is away for a while is not such an error.
    fn take(&mut self, batch: &Batch) -> Result<(), ExportError>;

    /// Called where no batch has come for [`queue::TICK`](crate::queue::TICK), and at least as often otherwise:
    /// writes the collected data, does work that is due by time.
    ///
    /// # Errors
    /// As [`take`](Export::take).
    fn tick(&mut self) -> Result<(), ExportError> {
        Ok(())
    }

    /// Lets out the rest: nothing more comes.
    ///
    /// # Errors
    /// As [`take`](Export::take).
    fn finish(&mut self) -> Result<(), ExportError> {
        Ok(())
    }

    /// Called once, before everything else: how long it may wait.
    fn set_patience(&mut self, _patience: Arc<Patience>) {}

    /// Records so far. Those that it still holds are in neither count.
    fn counts(&self) -> Counts;
}
