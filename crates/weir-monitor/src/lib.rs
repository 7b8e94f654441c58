//! The display of a flow monitor while it runs.
//!
//! Once a second a [`View`] is made of the counts. A display reads the last one ([`Latest`]), and slows nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | [`view`] | the displayed data: rates, losses, flows, talkers, protocols |
//! | [`latest`] | the last view, for several readers |
//! | [`maker`] | the thread that makes views |
//! | [`page`] | a page in the browser that shows it, and metrics for Prometheus |
//! | [`terminal`] | the live table in a terminal |
//! | [`limits`] | how often, and how much is kept |
//! | `shown`, `talkers`, `protocols` | data that a round through all flows collects |
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
