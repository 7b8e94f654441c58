//! The plan of a run of `weir capture`, made from its arguments. All later steps read only the plan.

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

use anyhow::{Result, anyhow, bail};
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
use crate::flows::table::TableInAdvance;
use crate::flows::watch::Watch;
use crate::signals::End;
use crate::source_name::{Part, SourceName};
pub use names::is_directory;

/// The shortest interval of `--json-every`, because each line reads the counters of all feeds.
const JSON_EVERY_MIN: Duration = Duration::from_millis(10);

/// A run of `weir capture`.
#[derive(Debug)]
pub struct CapturePlan {
    /// The sources, in the order in which they were named; each source once.
    pub sources: Vec<PlannedSource>,
    /// The feeds of each source.
    pub feeds: FeedPlan,
    /// Bytes of the rings of each feed.
    pub ring_bytes: u64,
    /// The kind of pages of rings. It does not apply to rings that the kernel allocates.
    pub ring_pages: Pages,
    /// Put interfaces into promiscuous mode.
    pub promiscuous: bool,
    /// The CPUs of the threads that capture.
    pub cpus: Option<CpuList>,
    /// Wait for missing interfaces, at the start and whenever they vanish.
    pub follow: bool,
    /// Refuse sources that carry this machine's own traffic, also when they come back.
    pub asks_before_consuming: bool,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// Address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The outputs, which determine the consumers.
    pub outputs: Outputs,
    /// How long a frame waits for older ones from other rings.
    pub merge_slack: Duration,
    /// Time after which the run stops.
    pub duration: Option<Duration>,
    /// Number of frames after which the run stops.
    pub frames: Option<u64>,
    /// Print the chosen engines and, once a second, the progress on standard error.
    pub talks: bool,
    /// Report as JSON.
    pub json: bool,
    /// Interval at which the JSON report is printed while the run lasts.
    pub json_every: Option<Duration>,
    /// Exit with status 1 if frames were lost.
    pub fail_on_loss: bool,
    /// The table for `outputs.flows`, which the consumer takes.
    pub flow_table: Option<TableInAdvance>,
    /// The viewers of a running `weir flows`.
    pub watch: Option<Watch>,
    /// The end of the run. A second signal shortens it.
    pub end: End,
}

/// A source and how it is opened.
#[derive(Clone, Debug)]
pub struct PlannedSource {
    /// The name of the source, without a part.
    pub name: SourceName,
    /// The named parts of the source. Each part has its own feeds. If the engine itself is limited to a queue, the part
    /// is [`Part::Whole`].
    pub parts: Vec<Part>,
    /// The target of the engine.
    pub target: Target,
    /// The requested engine, with its options.
    pub request: EngineRequest,
}

impl PlannedSource {
    /// Returns the link type of the source's frames, for which filters are compiled.
    pub fn link_type(&self) -> Result<u16> {
        let engine = self.request.candidates(&self.target).next();
        Ok(engine.map_or(Ok(weir_frame::pcapng::LINKTYPE_ETHERNET), |engine| {
            (engine.link_type)(&self.target)
        })?)
    }
}

/// The outputs of a run. Without any, frames are only counted.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// Print one line for each frame on standard output, in this format.
    pub print: Option<PrintOptions>,
    /// Write this pcapng file.
    pub write: Option<PathBuf>,
    /// The conditions under which the next file of `write` begins.
    pub rotation: Rotation,
    /// Directories of the recorder.
    pub record: Vec<PathBuf>,
    /// The conditions under which the recorder begins the next file, and its quota.
    pub rotate: RotateArgs,
    /// The compression level of recorded files.
    pub compress: Option<i32>,
    /// Record only frames around a trigger.
    pub look_back: Option<LookBack>,
    /// Permissions of the files that are created.
    pub file_mode: u32,
    /// Measure the delays of frames.
    pub latency: Option<LatencyName>,
    /// Count frames with the null monitor, in addition to other outputs.
    pub count: bool,
    /// Feed frames into an interface (`weir attach`).
    pub netdev: Option<NetdevArgs>,
    /// Count frames by flow (`weir flows`).
    pub flows: Option<FlowMonitorArgs>,
}

impl CapturePlan {
    /// Returns whether some source does not wait for slow consumers. Files do wait, unless --no-wait is given.
    pub fn is_live(&self) -> bool {
        self.sources.iter().any(|source| !source.request.options.waits)
    }

    /// Returns whether the run ends with its main consumer, which has its own limit.
    pub fn is_ended_by_main(&self) -> bool {
        self.frames.is_some() || self.outputs.rotation.ends_after().is_some()
    }

    /// Makes the plan for these arguments.
    ///
    /// # Errors
    /// The arguments contradict each other or cannot be satisfied; the text says what to change.
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
        // Refused, because the capture would run on fewer CPUs than requested.
        let cpus = args.input.cpus.as_ref().map_or(Ok(()), CpuList::check);
        cpus.map_err(|what| anyhow!("--cpus {what}"))?;
        let flags = flag_rules::check(args)?;
        let sources = sources::of(args, &flags)?;
        own_traffic::check(args, &sources)?;
        let is_recorder = names::is_recorder(args);
        let look_back = look_back::of(args, is_recorder)?;
        let ring_bytes = memory::ring_bytes(
            args.input.ring_size,
            &sources,
            &feeds,
            args.input.control.is_some(),
        );
        if let Some(look_back) = &look_back {
            let history = memory::rings_bytes(ring_bytes, &sources, &feeds).map(|bytes| bytes / 2);
            look_back::check_room(look_back, history)?;
        }
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
            flow_table: None,
            watch: None,
            end: End::default(),
        };
        memory::check(&plan)?;
        Ok(plan)
    }
}

/// Returns whether frames may come from more than one interface or go to more than one feed.
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

fn direction(name: DirectionName) -> Direction {
    match name {
        DirectionName::In => Direction::In,
        DirectionName::Out => Direction::Out,
        DirectionName::Both => Direction::Both,
    }
}

/// Returns the options for any engine; the engine is chosen later.
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
