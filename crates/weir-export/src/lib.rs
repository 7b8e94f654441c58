//! Records of flows, out to where people look.
//!
//! An [`Export`] takes batches of records and may wait for a disk or a collector. A [`Queue`] has a thread of its own
//! for one: the thread that counts frames hands batches over, never waits for it (unless told to), and every record
//! that could not be sent is counted.
//!
//! | module | what it holds |
//! |---|---|
//! | [`export`] | what an export is, its batches, where their flows come from |
//! | [`queue`] | the thread of an export, and what waits for it |
//! | [`json`] | lines of JSON |
//! | [`parquet`] | Parquet files by time, for DuckDB and others |
//! | [`ipfix`] | an export to a collector of IPFIX |
//! | [`patience`] | how long an export goes on with the records that it has |
//! | [`limits`] | how much may wait |
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
