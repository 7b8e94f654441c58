//! What a flow monitor shows while it runs.
//!
//! Once a second a [`View`] is made of what is counted. Whoever shows it looks at the last one ([`Latest`]), and slows
//! nothing.
//!
//! | module | what it holds |
//! |---|---|
//! | [`view`] | what is shown: rates, losses, flows, talkers, protocols |
//! | [`latest`] | the last view, for several readers |
//! | [`terminal`] | the live table in a terminal |
#![forbid(unsafe_code)]

pub mod latest;
pub mod terminal;
pub mod view;

pub use latest::Latest;
pub use view::{ExportView, FlowView, Protocol, Rates, SourceView, Talker, TrafficCounts, View};
