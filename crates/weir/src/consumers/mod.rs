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
    /// Writes the remaining output after a failure, when the consumer is not finished as usual.
    fn end(&mut self) {}

    /// The delays of frames, if it measures them.
    fn latency(&self) -> Option<LatencyReport> {
        None
    }

    /// Report on the interface that it feeds.
    fn netdev(&self) -> Option<NetdevReport> {
        None
    }

    /// Report on the flows that it counts.
    fn flows(&self) -> Option<FlowsReport> {
        None
    }

    /// Report of the recorder.
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

    /// Report on the interface that it feeds.
    fn netdev(&self) -> Option<NetdevReport> {
        None
    }

    /// Report on the flows that it counts.
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
    /// The network namespace of its thread, if it is another one.
    pub netns: Option<Netns>,
}

impl Named {
    fn new(name: &'static str, consumer: Box<dyn RunConsumer>) -> Named {
        Named { name, consumer, netns: None }
    }

    /// Starts its thread. A thread inherits the network namespace of its creator.
    pub fn spawn(self, plan: Plan<dyn RunConsumer>) -> Result<Running<dyn RunConsumer>> {
        let running = match &self.netns {
            Some(netns) => netns.ask(|| spawn(self.consumer, plan))?,
            None => spawn(self.consumer, plan),
        };
        running.context("starting a thread")
    }
}

/// Parameters for making consumers.
pub struct Input<'a> {
    pub plan: &'a CapturePlan,
    /// The stop, after which outputs do not wait long for their readers.
    pub stop: Stop,
    /// Names of addresses, for files.
    pub names: &'a Names,
}

impl Input<'_> {
    /// A consumer that merges frames into time order and passes them to `sink`.
    fn ordered<S: RunSink + 'static>(&self, sink: S) -> Box<dyn RunConsumer> {
        Box::new(Ordered::new(self.plan.merge_slack, sink))
    }
}

/// The requested consumers. The first is the main one, whose counts are those of the run.
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
