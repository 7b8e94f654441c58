//! Plan of a run of `weir capture`. Raw arguments end here: all else reads the plan.

mod flag_rules;
mod look_back;
mod memory;
mod names;
pub mod own_traffic;
mod rotation;
pub mod sources;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_capture::af_xdp::Mode;
use weir_capture::bpf::{Hook, TcAttach};
use weir_capture::engines::auto::EngineRequest;
use weir_capture::engines::declaration::Target;
use weir_capture::engines::options::{EngineOptions, Timestamp};
use weir_capture::{Direction, Feed};

use weir_probe::CpuList;
use weir_ring::memory::Pages;
use weir_store::recorder::look_back::LookBack;
use weir_store::{PrintOptions, Rotation};

use crate::cli::{
    CaptureArgs, DirectionName, FlowMonitorArgs, HookName, LatencyName, NetdevArgs, RotateArgs,
    TcAttachName, TimestampName, XdpModeName,
};
use crate::feeds::FeedPlan;
use crate::flows::watch::Watch;
use crate::signals::End;
use crate::source_name::{Part, SourceName};

/// The shortest time between two lines of `--json-every`: each asks all feeds for their counters.
const JSON_EVERY_MIN: Duration = Duration::from_millis(10);

/// A run of `weir capture`.
#[derive(Debug)]
pub struct CapturePlan {
    /// The sources, in the order in which they were named; each source once.
    pub sources: Vec<PlannedSource>,
    /// Which frames of each.
    pub feeds: FeedPlan,
    /// Bytes of the rings of each feed.
    pub ring_bytes: u64,
    /// Pages of those rings that are not the kernel's.
    pub ring_pages: Pages,
    /// Ask interfaces for frames that are not addressed to them.
    pub promiscuous: bool,
    /// The CPUs of the threads that take frames.
    pub cpus: Option<CpuList>,
    /// Interfaces that are not there are waited for, at the start and whenever they vanish.
    pub follow: bool,
    /// Sources whose frames this machine lives by are refused, also when they come back.
    pub asks_before_consuming: bool,
    /// The socket that changes the run.
    pub control: Option<PathBuf>,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// Where frames go.
    pub outputs: Outputs,
    /// How long a frame waits for older ones of another ring.
    pub merge_slack: Duration,
    /// When to stop.
    pub duration: Option<Duration>,
    /// After how many frames to stop.
    pub frames: Option<u64>,
    /// Say on standard error which engine was taken, and once a second how it goes.
    pub talks: bool,
    /// Report as JSON.
    pub json: bool,
    /// Report so while it runs, too, so often.
    pub json_every: Option<Duration>,
    /// Lost frames are a failure.
    pub fail_on_loss: bool,
    /// Those who look on.
    pub watch: Option<Watch>,
    /// How its end is made short, where that takes long.
    pub end: End,
}

/// A source and how it is opened.
#[derive(Clone, Debug)]
pub struct PlannedSource {
    /// As it is called.
    pub name: SourceName,
    /// The parts of it that were named, as far as feeds are to choose them.
    pub parts: Vec<Part>,
    /// The target of the engine.
    pub target: Target,
    /// The engine, and its options.
    pub request: EngineRequest,
}

impl PlannedSource {
    /// The link type of its frames, which filters are compiled for.
    pub fn link_type(&self) -> Result<u16> {
        let engine = self.request.candidates(&self.target).next();
        Ok(engine.map_or(Ok(weir_frame::pcapng::LINKTYPE_ETHERNET), |engine| {
            (engine.link_type)(&self.target)
        })?)
    }
}

/// Where frames go; nowhere else: they are counted.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// A line a frame on standard output, and its format.
    pub print: Option<PrintOptions>,
    /// A pcapng file.
    pub write: Option<PathBuf>,
    /// When it is followed by another one.
    pub rotation: Rotation,
    /// Directories that are recorded into.
    pub record: Vec<PathBuf>,
    /// When the recorder goes on in another file, and how many bytes its files may have.
    pub rotate: RotateArgs,
    /// The compression level of recorded files.
    pub compress: Option<i32>,
    /// Only what lies around a trigger is recorded.
    pub look_back: Option<LookBack>,
    /// Permissions of files that it makes.
    pub file_mode: u32,
    /// Their delays are measured.
    pub latency: Option<LatencyName>,
    /// They are counted, too.
    pub count: bool,
    /// They are fed into an interface.
    pub netdev: Option<NetdevArgs>,
    /// They are counted by flow.
    pub flows: Option<FlowMonitorArgs>,
}

impl CapturePlan {
    /// Whether frames come when they come: they wait for no consumer, as those of files do.
    pub fn is_live(&self) -> bool {
        self.sources.iter().any(|source| !source.request.options.waits)
    }

    /// Whether the run ends with its main consumer, which has a limit of its own.
    pub fn is_ended_by_main(&self) -> bool {
        self.frames.is_some() || self.outputs.rotation.ends_after().is_some()
    }

    /// Whether frames have stamps of the machine's clock, so that it tells the time where none come. Those of files and
    /// made-up ones have a time of their own.
    pub fn has_clock_stamps(&self) -> bool {
        has_clock_stamps(&self.sources)
    }

    /// The plan for these arguments.
    ///
    /// # Errors
    /// What cannot be or makes no sense, with the way out.
    pub fn new(args: &CaptureArgs) -> Result<CapturePlan> {
        check_form(args)?;
        names::check(args)?;
        let rotation = rotation::of(args)?;
        let feeds = FeedPlan {
            named: args.feed.clone(),
            filter: args.input.filter.clone(),
            defaults: Feed {
                snaplen: args.input.snaplen,
                direction: direction(args.input.direction),
                ..Feed::default()
            },
        };
        feeds.check()?;
        check_cpus(args)?;
        let flags = flag_rules::check(args)?;
        let sources = sources::of(args, &flags)?;
        own_traffic::check(args, &sources)?;
        let is_recorder = names::is_recorder(args);
        let look_back = look_back::of(args, is_recorder, has_clock_stamps(&sources))?;
        let ring_bytes = memory::ring_bytes(
            args.input.ring_size,
            &sources,
            &feeds,
            args.input.control.is_some(),
        );
        let plan = CapturePlan {
            sources,
            feeds,
            ring_bytes,
            ring_pages: if args.input.hugepages { Pages::Reserved } else { Pages::Now },
            promiscuous: !args.input.no_promiscuous,
            cpus: args.input.cpus.clone(),
            follow: args.input.follow,
            asks_before_consuming: args.input.consume && !args.input.yes,
            control: args.input.control.clone(),
            metrics: args.metrics,
            outputs: Outputs {
                print: args.print.print.then(|| args.print.options(has_several(args))),
                write: args.write.first().filter(|_| !is_recorder).cloned(),
                rotation,
                record: args.write.iter().filter(|_| is_recorder).cloned().collect(),
                file_mode: args.file_mode,
                rotate: args.rotate,
                compress: args.compress,
                look_back,
                latency: args.latency,
                count: args.count,
                netdev: args.netdev.clone(),
                flows: args.flows.clone(),
            },
            merge_slack: args.input.merge_slack,
            duration: args.input.duration,
            frames: args.input.frames,
            talks: !args.input.quiet,
            json: args.input.json || args.json_every.is_some(),
            json_every: args.json_every,
            fail_on_loss: args.input.fail_on_loss,
            watch: None,
            end: End::default(),
        };
        memory::check(&plan)?;
        Ok(plan)
    }
}

fn has_clock_stamps(sources: &[PlannedSource]) -> bool {
    let has_own_time = |name: &SourceName| matches!(name, SourceName::File(_) | SourceName::Gen(_));
    sources.iter().all(|source| !has_own_time(&source.name))
}

/// Whether frames may come from more than one interface or go to more than one feed.
fn has_several(args: &CaptureArgs) -> bool {
    let is_pattern = |name: &SourceName| matches!(name, SourceName::Pattern { .. });
    args.input.sources.len() > 1
        || args.input.sources.iter().any(is_pattern)
        || !args.feed.is_empty()
}

fn check_form(args: &CaptureArgs) -> Result<()> {
    if let Some(hint) = args.tcpdump_hint() {
        bail!(hint);
    }
    if args.input.sources.is_empty() {
        let verb = match (&args.flows, &args.netdev) {
            (Some(_), _) => "flows",
            (_, Some(_)) => "attach",
            _ => "capture",
        };
        bail!(
            "name a source: weir {verb} eth0, or file:TRACE; `weir doctor` lists the interfaces here, and \
             `weir help {verb}` the flags"
        );
    }
    if args.json_every.is_some_and(|every| every < JSON_EVERY_MIN) {
        bail!(
            "--json-every: write a time of {} ms or more, such as 1s",
            JSON_EVERY_MIN.as_millis()
        );
    }
    if args.print.print && args.write.iter().any(|path| path == Path::new("-")) {
        bail!(
            "--print and --write - both want standard output; write to a file or a named pipe \
             (--write PATH), or print by --write - | tcpdump -r -"
        );
    }
    names::check_output(args)
}

/// Refuses CPUs that this process may not run on: fewer than were asked for would be a surprise.
fn check_cpus(args: &CaptureArgs) -> Result<()> {
    let Some(cpus) = &args.input.cpus else { return Ok(()) };
    let missing = cpus.not_allowed().context("--cpus: which CPUs there are")?;
    if let Some(cpu) = missing.first() {
        bail!(
            "--cpus {cpus}: there is no CPU {cpu} that this process may run on; /proc/self/status lists those that it \
             may (Cpus_allowed_list)"
        );
    }
    Ok(())
}

fn direction(name: DirectionName) -> Direction {
    match name {
        DirectionName::In => Direction::In,
        DirectionName::Out => Direction::Out,
        DirectionName::Both => Direction::Both,
    }
}

/// Options for engines, whichever it will be.
fn engine_options(args: &CaptureArgs) -> EngineOptions {
    EngineOptions {
        hook: args.input.hook.map(|hook| match hook {
            HookName::Tc => Hook::Tc,
            HookName::Xdp => Hook::Xdp,
        }),
        tc_attach: match args.input.tc_attach {
            TcAttachName::Best => TcAttach::Best,
            TcAttachName::Clsact => TcAttach::Clsact,
        },
        consume: args.input.consume,
        record_queue: args.record_queue,
        queues: args.input.queues,
        copiers: args.input.copiers,
        xdp_mode: match args.input.xdp_mode {
            XdpModeName::Best => Mode::Best,
            XdpModeName::Copy => Mode::Copy,
            XdpModeName::ZeroCopy => Mode::ZeroCopy,
        },
        timestamp: match args.input.timestamp {
            TimestampName::Hook => Timestamp::Hook,
            TimestampName::Copy => Timestamp::Copy,
            TimestampName::Nic => Timestamp::Nic,
        },
        hugepages: args.input.hugepages,
        speed: args.input.speed,
        socket: args.input.socket.clone(),
        link: None,
        follows: args.input.follow,
        waits: false,
    }
}
