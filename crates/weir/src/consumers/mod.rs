//! The built-in consumers. Each has a file here, and an entry in [`all`].

mod flows;
mod latency;
mod netdev;
mod null;
mod print;
mod recorder;
mod write;

use std::io::Write;

use anyhow::{Context, Result};
use weir_capture::kernel::netns::Netns;
use weir_consumer::thread::{Plan, Running, spawn};
use weir_consumer::{Consumer, Null, Ordered, Sink};
use weir_store::recorder::RecorderReport;
use weir_store::{FileWriter, FilesByLinkType, Names, Printer};

pub use latency::LatencyReport;
pub use netdev::NetdevReport;

use crate::flows::report::FlowsReport;
use crate::interruptible_writer::Stop;
use crate::plan::CapturePlan;

/// A consumer of `weir capture`.
pub trait RunConsumer: Consumer + Send {
    /// Writes the remaining output after a failure, in place of `finish`.
    fn end(&mut self) {}

    /// Returns the delays of frames, if the consumer measures them.
    fn latency(&self) -> Option<LatencyReport> {
        None
    }

    /// Returns the report on the interface that the consumer feeds.
    fn netdev(&self) -> Option<NetdevReport> {
        None
    }

    /// Returns the report on the flows that the consumer counts.
    fn flows(&self) -> Option<FlowsReport> {
        None
    }

    /// Returns the report of a recorder.
    fn recorder(&self) -> Option<RecorderReport> {
        None
    }
}

impl RunConsumer for Null {}

impl<S: RunSink> RunConsumer for Ordered<S> {
    fn end(&mut self) {
        self.sink_mut().end();
    }

    fn netdev(&self) -> Option<NetdevReport> {
        self.sink().netdev()
    }

    fn flows(&self) -> Option<FlowsReport> {
        self.sink().flows()
    }
}

/// A sink of `weir capture`.
pub trait RunSink: Sink + Send {
    /// See [`RunConsumer::end`].
    fn end(&mut self) {}

    /// Returns the report on the interface that the sink feeds.
    fn netdev(&self) -> Option<NetdevReport> {
        None
    }

    /// Returns the report on the flows that the sink counts.
    fn flows(&self) -> Option<FlowsReport> {
        None
    }
}

impl<W: Write + Send> RunSink for Printer<W> {}
impl RunSink for FileWriter {}

impl RunSink for FilesByLinkType {}

/// A consumer, with its name in the ledger.
pub struct Named {
    pub name: &'static str,
    pub consumer: Box<dyn RunConsumer>,
    /// The network namespace of the consumer's thread, if it is not that of the process.
    pub netns: Option<Netns>,
}

impl Named {
    fn new(name: &'static str, consumer: Box<dyn RunConsumer>) -> Named {
        Named { name, consumer, netns: None }
    }

    /// Starts the consumer's thread. A thread inherits the network namespace of its creator.
    pub fn spawn(self, plan: Plan<dyn RunConsumer>) -> Result<Running<dyn RunConsumer>> {
        let running = match &self.netns {
            Some(netns) => netns.ask(|| spawn(self.consumer, plan))?,
            None => spawn(self.consumer, plan),
        };
        running.context("starting a thread")
    }
}

/// Parameters for creating consumers.
pub struct Input<'a> {
    pub plan: &'a CapturePlan,
    /// The stop of the run. After it was requested, outputs do not wait long for their readers.
    pub stop: Stop,
    /// Names of addresses, to be written into files.
    pub names: &'a Names,
}

impl Input<'_> {
    /// Returns a consumer that merges frames into time order and passes them to `sink`.
    fn ordered<S: RunSink + 'static>(&self, sink: S) -> Box<dyn RunConsumer> {
        Box::new(Ordered::new(self.plan.merge_slack, sink))
    }
}

/// Creates the requested consumers. The first is the main consumer, whose counts are those of the run.
pub fn all(input: &Input<'_>) -> Result<Vec<Named>> {
    let outputs = &input.plan.outputs;
    let mut all = Vec::new();
    if let Some(netdev) = &outputs.netdev {
        all.push(netdev::open(input, netdev)?);
    }
    if let Some(flows) = &outputs.flows {
        all.push(flows::open(input, flows)?);
    }
    if let Some(path) = &outputs.write {
        all.push(Named::new("write", write::open(input, path)?));
    }
    if !outputs.record.is_empty() {
        all.push(Named::new("record", recorder::open(input, &outputs.record)?));
    }
    if let Some(options) = outputs.print {
        all.push(Named::new("print", print::open(input, options)?));
    }
    if let Some(how) = outputs.latency {
        all.push(Named::new("latency", latency::open(how)));
    }
    if outputs.count || all.is_empty() {
        all.push(Named::new("count", null::open()));
    }
    Ok(all)
}
