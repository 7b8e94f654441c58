//! The trait that all exports implement, and its data types.

use std::io;
use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;
use weir_flow::FlowRecord;

use crate::patience::Patience;

/// The interface that frames come from, and its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The interface's name.
    pub interface: String,
    /// The VM, container or pod that the interface belongs to, if that is known.
    pub owner: Option<Owner>,
}

/// Owner of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// `container`, `pod`, `vm`, `process` or `netns`.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// Id, if the owner is a container or a pod.
    pub id: Option<String>,
}

/// A batch of records. All exports share the same batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The records, in the order in which their flows ended.
    pub records: Vec<FlowRecord>,
    /// Origins by [`FlowRecord::interface`]. A later batch may have more origins, but an interface keeps its number. An
    /// entry changes only when its owner becomes known.
    pub origins: Arc<Vec<Origin>>,
}

impl Batch {
    /// Returns the origin of a record of this batch.
    #[must_use]
    pub fn origin(&self, record: &FlowRecord) -> Option<&Origin> {
        self.origins.get(record.interface as usize)
    }
}

/// Counts of the records that an export has handled so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Records that were passed to the file, socket or pipe.
    pub sent: u64,
    /// Records that could not be sent: the receiver was too slow, unreachable, or refused them.
    pub unsent: u64,
}

/// The error that ends an export. Records that the export received and did not send are in its [`Counts::unsent`].
#[derive(Debug, Error)]
#[error("{what}")]
pub struct ExportError {
    /// The failed action, its object, and a remedy.
    pub what: String,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// A destination for records. Each export has its own thread, which calls these methods; they may block.
pub trait Export: Send {
    /// Returns the name of the export, as a user would write it: `ipfix://collector:4739`.
    fn name(&self) -> String;

    /// Sends these records, or counts them as unsent.
    ///
    /// # Errors
    /// [`ExportError`]: the export takes no more records. A collector that is unreachable for a while is no error.
    fn take(&mut self, batch: &Batch) -> Result<(), ExportError>;

    /// Writes collected data and does periodic work. Called every [`queue::TICK`](crate::queue::TICK), or later if
    /// another method takes longer.
    ///
    /// # Errors
    /// As [`take`](Export::take).
    fn tick(&mut self) -> Result<(), ExportError> {
        Ok(())
    }

    /// Sends all remaining records. No further batch comes after this call.
    ///
    /// # Errors
    /// As [`take`](Export::take).
    fn finish(&mut self) -> Result<(), ExportError> {
        Ok(())
    }

    /// Sets the time limits of the export. Called once, before all other methods.
    fn set_patience(&mut self, _patience: Arc<Patience>) {}

    /// Returns the counts so far. Records that the export still holds are not counted.
    fn counts(&self) -> Counts;
}
