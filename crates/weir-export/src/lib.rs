//! Exports of flow records: to files, standard output and collectors.
//!
//! An [`Export`] takes batches of records; it may wait for a disk or a collector. A [`Queue`] runs an export in its own
//! thread. The thread that counts frames pushes batches to the queue, and does not wait for the export unless told to.
//! Every record that could not be sent is counted.
//!
//! | module | contents |
//! |---|---|
//! | [`export`] | the trait [`Export`], batches of records, and origins of flows |
//! | [`queue`] | the thread of an export, and the batches that wait for it |
//! | [`json`] | lines of JSON |
//! | [`parquet`] | Parquet files by time, for DuckDB and others |
//! | [`ipfix`] | an export to a collector of IPFIX |
//! | [`patience`] | time limits of an export |
//! | [`limits`] | limits for sizes, counts and times |
#![deny(unsafe_code)]

pub mod export;
pub mod ipfix;
pub mod json;
pub mod limits;
pub mod parquet;
pub mod patience;
mod patient_writer;
pub mod queue;
#[cfg(test)]
mod testing;

pub use export::{Batch, Counts, Export, ExportError, Origin, Owner};
pub use json::JsonLines;
pub use parquet::Parquet;
pub use patience::{EndAtOnce, Patience};
pub use queue::{Finished, Queue, WhenFull};
