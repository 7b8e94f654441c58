//! Destinations of flow records: the largest ones are kept for the table, all of them go to the exports.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use weir_capture::kernel::netns;
use weir_consumer::Stalled;
use weir_export::ipfix::target::Protocol;
use weir_export::ipfix::{self, Ipfix};
use weir_export::json::JsonLines;
use weir_export::limits::{BATCH_RECORDS_MAX, FINISH_TIME_MAX};
use weir_export::parquet::{self, Parquet};
use weir_export::{
    Batch, Counts, Export, ExportError, Finished, Origin, Owner, Patience, Queue, WhenFull,
};
use weir_flow::{Counters, FlowRecord};
use weir_frame::pcapng::Interface;
use weir_monitor::{ExportView, Protocols, Snapshot};

use super::target::ExportTarget;
use super::text;
use super::top::Top;
use super::watch::{Watch, say};
use crate::cli::FlowMonitorArgs;
use crate::error_words::error_text;
use crate::interruptible_writer::{InterruptibleWriter, Stop};
use crate::privileges;
use crate::signals::End;

/// The longest time that a record waits in an incomplete batch.
const BATCH_WAIT: Duration = Duration::from_millis(100);
/// The most records per second that are sent to a collector by UDP. If many flows end at once, only the socket's buffer
/// of the collector holds their records.
const UDP_PACE: NonZeroU32 = NonZeroU32::new(500_000).unwrap();
/// The same limit for a trace, which is read faster than real time and waits for its exports.
const UDP_PACE_OF_TRACES: NonZeroU32 = NonZeroU32::new(50_000).unwrap();
/// Permissions of files of JSON lines.
const FILE_MODE: u32 = 0o600;
/// Name of the export on standard output.
const STDOUT: &str = "standard output";

/// The table of the largest flows, and the exports, of a run.
pub struct Exports {
    top: Top,
    exports: Vec<Queue>,
    /// The first export writes to standard output. If its reader leaves, the run ends.
    has_stdout: bool,
    batch: Vec<FlowRecord>,
    handed_over: Instant,
    origins: Arc<Vec<Origin>>,
    protocols: Protocols,
    is_biflow: bool,
    records: u64,
    packets: u64,
    /// For each export, whether its failure was reported to the user.
    failure_reported: Vec<bool>,
    watch: Option<Watch>,
    is_live: bool,
    stop: Stop,
    end: End,
}

/// An export that has ended.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExportReport {
    /// Name of the export, as on the command line.
    pub name: String,
    /// Records that were sent.
    pub sent: u64,
    /// Records that could not be sent, because the receiver was too slow or missing, or because of `error`.
    pub unsent: u64,
    /// How often a write was retried because the disk was full.
    pub disk_full: u64,
    /// The error that ended the export.
    pub error: Option<String>,
}

/// Settings of [`Exports`].
pub struct ExportSettings<'a> {
    pub args: &'a FlowMonitorArgs,
    /// Write JSON lines to standard output.
    pub json: bool,
    /// Live frames do not wait for slow exports. Frames of a trace do.
    pub is_live: bool,
    pub stop: &'a Stop,
    /// The end of the run. A second signal shortens it.
    pub end: &'a End,
    pub watch: Option<&'a Watch>,
}

impl Exports {
    /// Opens all exports.
    pub fn open(plan: &ExportSettings<'_>) -> Result<Exports> {
        let args = plan.args;
        for (at, target) in args.export.iter().enumerate() {
            if args.export[..at].contains(target) {
                bail!("--export {target} is there twice; leave one out");
            }
        }
        let mut exports = Vec::new();
        if plan.json {
            let out = InterruptibleWriter::stdout(plan.stop.clone()).context(STDOUT)?;
            let lines = JsonLines::new(out, STDOUT, args.biflow);
            exports.push(start(lines, plan)?);
        }
        for target in &args.export {
            exports.push(match target {
                ExportTarget::Json(path) => {
                    let (name, biflow) = (target.to_string(), args.biflow);
                    let out =
                        create(path, plan.stop).with_context(|| format!("--export {name}"))?;
                    match out {
                        Out::File(file) => start(JsonLines::append(file, &name, biflow), plan)?,
                        Out::Pipe(pipe) => start(JsonLines::new(pipe, &name, biflow), plan)?,
                    }
                }
                ExportTarget::Parquet(path) => {
                    let config = parquet::Config {
                        every: args.parquet_every,
                        is_biflow: args.biflow,
                        ..parquet::Config::default()
                    };
                    // Later files will be created after capabilities are dropped, so the check runs without them.
                    let parquet = privileges::without(|| Parquet::open(path, config))?;
                    start(parquet, plan)?
                }
                ExportTarget::Ipfix(collector) => {
                    let pace = if plan.is_live { UDP_PACE } else { UDP_PACE_OF_TRACES };
                    let config = ipfix::Config {
                        domain: args.observation_domain,
                        biflow: args.biflow,
                        pace: (collector.protocol == Protocol::Udp).then_some(pace),
                        ..ipfix::Config::default()
                    };
                    start(Ipfix::open(collector, config)?, plan)?
                }
            });
        }
        Ok(Exports {
            top: Top::new(args.top),
            failure_reported: vec![false; exports.len()],
            exports,
            has_stdout: plan.json,
            batch: Vec::new(),
            handed_over: Instant::now(),
            origins: Arc::default(),
            protocols: Protocols::default(),
            is_biflow: args.biflow,
            records: 0,
            packets: 0,
            watch: plan.watch.cloned(),
            is_live: plan.is_live,
            stop: plan.stop.clone(),
            end: plan.end.clone(),
        })
    }

    /// Adds the next interface, to which flow records refer by its number.
    pub fn describe(&mut self, interface: &Interface) {
        let owner = interface.description.as_deref().and_then(netns::Owner::described);
        let owner = owner.map(|netns::Owner { kind, name, id, .. }| Owner {
            kind: kind.to_owned(),
            name,
            id,
        });
        let origin = Origin { interface: interface.name.clone(), owner };
        // A batch that was handed over keeps the former list of interfaces.
        Arc::make_mut(&mut self.origins).push(origin);
    }

    /// Adds the record of a flow to the table, and to the batch for the exports.
    pub fn take(&mut self, record: &FlowRecord) {
        self.records += 1;
        self.packets += record.packets();
        self.top.take(record);
        self.protocols.take(record);
        if !self.exports.is_empty() {
            self.batch.push(*record);
            if self.batch.len() >= BATCH_RECORDS_MAX {
                self.hand_over();
            }
        }
    }

    /// Hands the batch over to the exports if its first record has waited long enough.
    pub fn flush(&mut self) {
        if !self.batch.is_empty() && self.handed_over.elapsed() >= BATCH_WAIT {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        self.handed_over = Instant::now();
        for (export, reported) in self.exports.iter().zip(&mut self.failure_reported) {
            if export.has_ended() && !std::mem::replace(reported, true) && export.name() != STDOUT {
                say(
                    self.watch.as_ref(),
                    &format!("--export {}: it has failed, and takes no more", export.name()),
                );
            }
        }
        let records = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH_RECORDS_MAX));
        let batch = Arc::new(Batch { records, origins: Arc::clone(&self.origins) });
        self.exports.iter_mut().for_each(|export| export.push(&batch));
    }

    /// Begins the end of the run. No more frames come, so exports may take some time.
    ///
    /// Exports of a trace may take as long as they need, unless the run was stopped. Others have [`FINISH_TIME_MAX`]. A
    /// further signal ends all of them at once.
    pub fn wait_for_exports(&mut self) {
        self.end.begins();
        if self.is_live || self.stop.is_signalled() {
            let end = Instant::now() + FINISH_TIME_MAX;
            self.exports.iter_mut().for_each(|export| export.end_by(end));
        }
    }

    /// Returns whether the reader of standard output has left, or a write to standard output has failed.
    pub fn has_lost_stdout(&self) -> bool {
        self.has_stdout && self.exports.first().is_some_and(Queue::has_ended)
    }

    /// Waits until all records are sent or have failed. Returns the report of each export, and the error of standard
    /// output.
    pub fn finish(&mut self) -> (Vec<ExportReport>, Option<ExportError>) {
        if !self.batch.is_empty() {
            self.hand_over();
        }
        // All exports are closed before the first is waited for, so that they finish at the same time.
        self.exports.iter_mut().for_each(Queue::close);
        let (mut reports, mut of_stdout) = (Vec::new(), None);
        for (at, mut export) in std::mem::take(&mut self.exports).into_iter().enumerate() {
            let Finished { name, counts, full, failure } = export.finish();
            let error = failure.as_ref().map(|failure| error_text(failure));
            let Counts { sent, unsent } = counts;
            let mut report = ExportReport { name, sent, unsent, disk_full: full, error };
            if at == 0 && self.has_stdout {
                // A failure of standard output is an error of the run, not of an export.
                (of_stdout, report.error) = (failure, None);
            }
            reports.push(report);
        }
        (reports, of_stdout)
    }

    /// Returns the number of packets in all records so far.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the number of records so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns data for viewers, except the flows. `capacity` is that of the flow table, in flows.
    pub fn snapshot(
        &self,
        counters: Counters,
        capacity: u64,
        frames: u64,
        wire_bytes: Option<u64>,
    ) -> Snapshot {
        let view = |export: &Queue| ExportView {
            name: export.name().to_owned(),
            counts: export.counts(),
            disk_full: export.full(),
            has_failed: export.has_ended(),
        };
        Snapshot {
            counters,
            capacity,
            frames,
            wire_bytes,
            records: self.records,
            ended: self.protocols.clone(),
            origins: Arc::clone(&self.origins),
            exports: self.exports.iter().map(view).collect(),
        }
    }

    /// Returns the flows with the most bytes, as a text table; empty if all flows were written to standard output.
    pub fn table(&self) -> String {
        if self.has_stdout {
            return String::new();
        }
        let name = |number: u32| Some(self.origins.get(number as usize)?.interface.as_str());
        text::table(self.top.records(), name, self.is_biflow)
    }
}

/// Returns whether the export failed because its reader left or stalled.
pub fn is_readers_choice(failure: &ExportError) -> bool {
    let is_gone = failure.source.kind() == io::ErrorKind::BrokenPipe;
    is_gone || Stalled::is_why(&failure.source)
}

fn start(export: impl Export + 'static, plan: &ExportSettings<'_>) -> Result<Queue> {
    // A trace waits for a slow export. Live frames do not wait, so records are dropped.
    let when_full = if plan.is_live { WhenFull::Drop } else { WhenFull::Wait };
    let (name, watch) = (export.name(), plan.watch.cloned());
    let on_full = move || {
        let what =
            "its disk is full, and is tried again for a minute; what cannot wait so long is unsent";
        let flag = if name == STDOUT { "" } else { "--export " };
        say(watch.as_ref(), &format!("{flag}{name}: {what}"));
    };
    let patience = Patience::new(plan.end.at_once.clone(), on_full);
    Queue::start_with(export, when_full, patience).context("starting a thread")
}

/// An opened output of JSON lines.
enum Out {
    File(File),
    Pipe(InterruptibleWriter),
}

/// Opens a file to append lines to it. A new file is accessible to its owner only. A named pipe is opened once it has a
/// reader, unless the run is to end before.
fn create(path: &Path, stop: &Stop) -> Result<Out> {
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        let waits = || eprintln!("weir: {}: waiting for its reader", path.display());
        return Ok(Out::Pipe(InterruptibleWriter::named_pipe(path, stop.clone(), waits)?));
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(FILE_MODE);
    // Its last line is read, to see whether it is whole, unless the file may only be written.
    let file = match options.clone().read(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => options.open(path),
        opened => opened,
    };
    Ok(Out::File(file.map_err(|error| {
        match error.kind() {
            io::ErrorKind::NotFound => anyhow::Error::new(error)
                .context("it cannot be opened; make that directory, or name another"),
            _ => error.into(),
        }
    })?))
}
