//! The consumers in the box. Each is a file here and a line of [`all`]: what takes the frames, and which flag asks
//! for it.

mod latency;
mod null;
mod print;
mod write;

use anyhow::Result;
use weir_consumer::{Consumer, Null, Ordered, Sink};
use weir_store::Names;

pub use latency::LatencyReport;

use crate::interruptible_writer::Stop;
use crate::plan::CapturePlan;

/// A consumer of `weir capture`.
pub trait RunConsumer: Consumer + Send {
    /// How long frames took, if it timed them.
    fn latency(&self) -> Option<LatencyReport> {
        None
    }
}

impl RunConsumer for Null {}

impl<S: Sink + Send> RunConsumer for Ordered<S> {}

/// A consumer, and the name that it has in the ledger.
pub struct Named {
    pub name: &'static str,
    pub consumer: Box<dyn RunConsumer>,
}

/// What consumers are made of.
pub struct Input<'a> {
    pub plan: &'a CapturePlan,
    /// When outputs stop waiting for readers that take nothing.
    pub stop: Stop,
    /// Names of addresses, for files.
    pub names: &'a Names,
}

impl Input<'_> {
    /// Frames in time order, handed to `sink`.
    fn ordered<S: Sink + Send + 'static>(&self, sink: S) -> Box<dyn RunConsumer> {
        Box::new(Ordered::new(self.plan.merge_slack, sink))
    }
}

/// The consumers that were asked for, the main one first: its counts are those of the whole run.
pub fn all(input: &Input<'_>) -> Result<Vec<Named>> {
    let outputs = &input.plan.outputs;
    let mut all = Vec::new();
    if let Some(path) = &outputs.write {
        all.push(Named { name: "write", consumer: write::open(input, path)? });
    }
    if outputs.print {
        all.push(Named { name: "print", consumer: print::open(input)? });
    }
    if let Some(how) = outputs.latency {
        all.push(Named { name: "latency", consumer: latency::open(how) });
    }
    if outputs.count || all.is_empty() {
        all.push(Named { name: "count", consumer: null::open() });
    }
    Ok(all)
}
