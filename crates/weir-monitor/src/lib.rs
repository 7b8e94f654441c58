//! The live display of a flow monitor.
//!
//! A [`View`] of the counts is made once a second. Displays read the latest one ([`Latest`]), and do not slow the
//! monitor.
//!
//! | module | contents |
//! |---|---|
//! | [`view`] | the displayed data: rates, losses, flows, talkers, protocols |
//! | [`latest`] | the latest view, for several readers |
//! | [`maker`] | the thread that makes views |
//! | [`page`] | a web page with the view, and metrics for Prometheus |
//! | [`terminal`] | the live table in a terminal |
//! | [`limits`] | how often views are made, and how much data they have |
//! | `shown`, `talkers`, `protocols` | data that is collected in each pass over all flows |
#![forbid(unsafe_code)]

pub mod latest;
pub mod limits;
pub mod maker;
pub mod page;
mod protocols;
mod shown;
mod talkers;
pub mod terminal;
#[cfg(test)]
mod testing;
pub mod view;

pub use latest::Latest;
pub use maker::{Maker, Reporter, Snapshot, SourceReporter, Sources};
pub use page::Page;
pub use protocols::Protocols;
pub use view::{ExportView, FlowView, Protocol, Rates, SourceView, Talker, TrafficCounts, View};
