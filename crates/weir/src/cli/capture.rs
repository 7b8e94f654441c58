//! The command line of `weir capture`.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

use weir_capture::engines::ENGINES;
use weir_capture::engines::declaration::Declaration;
use weir_capture::replay::Speed;
use weir_frame::record::CAPLEN_MAX;
use weir_probe::CpuList;

use super::tcpdump_flags::TcpdumpFlags;
use crate::feeds::FeedName;
use crate::source_name::SourceName;
use crate::units;

/// An engine of interfaces or devices by name; without one, `auto` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineName(pub Option<&'static Declaration>);

impl EngineName {
    /// The best that works.
    pub const AUTO: EngineName = EngineName(None);
}

impl ValueEnum for EngineName {
    fn value_variants<'a>() -> &'a [EngineName] {
        static ALL: LazyLock<Vec<EngineName>> = LazyLock::new(|| {
            let live = ENGINES.into_iter().filter(|engine| engine.is_live());
            std::iter::once(EngineName::AUTO).chain(live.map(|one| EngineName(Some(one)))).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self.0 {
            None => PossibleValue::new("auto").help("The best that works here, and why"),
            Some(engine) => PossibleValue::new(engine.name).help(engine.purpose),
        })
    }
}

/// Hooks by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HookName {
    /// TC ingress and egress: passive, both directions
    Tc,
    /// XDP: in the driver, received frames only
    Xdp,
}

/// Modes of AF_XDP sockets by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum XdpModeName {
    /// Zero-copy if the driver supports it
    Best,
    /// The kernel copies each frame
    Copy,
    /// Zero-copy or an error
    ZeroCopy,
}

/// Sources of stamps by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimestampName {
    /// When the frame arrives at the hook
    Hook,
    /// When the frame is copied
    Copy,
    /// The driver's stamp, if that is a time of day
    Nic,
}

/// Ways to attach TC programs by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TcAttachName {
    /// tcx links where the kernel has them
    Best,
    /// A clsact filter, as on kernels before 6.6
    Clsact,
}

/// What a consumer does when it finds no frame, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LatencyName {
    /// It rests as the null monitor does, and sleeps until it is woken
    Rest,
    /// It looks all the time, some microseconds apart
    Poll,
}

/// Directions by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectionName {
    /// Received frames
    In,
    /// Sent frames
    Out,
    /// Either
    Both,
}

/// `weir capture`.
#[derive(Args, Debug)]
#[command(override_usage = "weir capture [OPTIONS] <SOURCE>...")]
pub struct CaptureArgs {
    /// Where frames come from: eth0, eth0@2/4 (the second of four shards of its flows), eth0@q2 (an RX queue),
    /// any or 'vnet*' (all with such names, as one source), netns:NAME/eth0 (as `ip netns` names it,
    /// or the number of a process there), docker:NAME (all interfaces of a container but lo), docker:NAME/eth0,
    /// pod:NAMESPACE/NAME, pod:NAMESPACE/NAME/eth0, file:TRACE.pcapng, gen:size=64,flows=1000,
    /// host:eth0 (what `weir serve` captures; read as any user whom its file allows)
    // One at least; but of those who name it as for tcpdump, what to type instead is the better answer.
    #[arg(value_name = "SOURCE")]
    pub sources: Vec<SourceName>,
    /// Print one line a frame; its time of day is UTC
    #[arg(long)]
    pub print: bool,
    /// Count frames beside --print and --write; without these two, counting is the default
    #[arg(long)]
    pub count: bool,
    /// Write a pcapng file in time order, whatever its name (- for standard output); the command ends when the disk
    /// has it. Frames of several link types go to a file each: out.pcapng, out.raw-ip.pcapng
    #[arg(short, long, value_name = "PATH")]
    pub write: Option<PathBuf>,
    /// Permissions of the files that --write creates, in octal, before the umask
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = units::file_mode, requires = "write")]
    pub file_mode: u32,
    /// Capture only frames that match, in tcpdump's syntax: 'tcp port 80'. The filter runs in the kernel where
    /// possible
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// A feed: frames with a filter and rings of their own, such as 'web: tcp port 80' or 'dns: udp port 53, snaplen
    /// 128'; behind further commas in, out or both, and sample N or flows N. May be given several times
    #[arg(long, value_name = "NAME: EXPR, ...")]
    pub feed: Vec<FeedName>,
    /// Wait for interfaces that are missing or down, and capture them again each time they come back
    #[arg(long)]
    pub follow: bool,
    /// Create a socket here, by which `weir filter` and `weir block` change this capture while it runs
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The socket of the daemon that host: sources are read from [default: /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// How frames are captured from an interface
    #[arg(long, value_enum, default_value = "auto")]
    pub engine: EngineName,
    /// Hook at which frames are captured
    #[arg(long, value_enum)]
    pub hook: Option<HookName>,
    /// How TC programs are attached; hidden: for tests of what kernels before 6.6 need
    #[arg(long, value_enum, default_value = "best", hide = true)]
    pub tc_attach: TcAttachName,
    /// RX queues to capture from: all, or 0-3
    #[arg(long, value_name = "QUEUES", default_value = "all", value_parser = units::queues)]
    pub queues: weir_capture::af_xdp::Queues,
    /// Threads that share each queue, each with a ring of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub copiers: u32,
    /// Mode of the AF_XDP sockets
    #[arg(long, value_enum, default_value = "best")]
    pub xdp_mode: XdpModeName,
    /// Time that a frame is stamped with; engines without a hook stamp when they copy, and engines without this flag
    /// at the hook
    #[arg(long, value_enum, default_value = "hook")]
    pub timestamp: TimestampName,
    /// Take frames away from the network stack, also those that no feed takes; for monitoring ports. With bpf, at XDP
    #[arg(long)]
    pub consume: bool,
    /// Allow --consume on an interface that has an address or carries the default route: this machine is then cut off
    /// there
    #[arg(long)]
    pub yes: bool,
    /// Most bytes kept of a frame
    #[arg(short, long, value_name = "BYTES", default_value_t = CAPLEN_MAX)]
    pub snaplen: u32,
    /// Which frames are offered, as seen from this machine; of a file, by the direction that it records
    #[arg(long, value_enum, default_value = "both")]
    pub direction: DirectionName,
    /// Memory of each feed's rings, shared by its CPUs [default: 64MiB, more above 16 CPUs; 8MiB for one file
    /// alone; 256MiB for gen: alone at full speed]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    pub ring_size: Option<u64>,
    /// Run the threads that take frames on these CPUs, and allocate the rings near them: 0-3,8, or node:1 for the
    /// CPUs of a NUMA node [default: any]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Do not put interfaces into promiscuous mode
    #[arg(short = 'p', long)]
    pub no_promiscuous: bool,
    /// Record the NIC queue of every frame
    #[arg(long)]
    pub record_queue: bool,
    /// Take rings, and what memory an engine has of its own, from huge pages that are reserved (sysctl
    /// vm.nr_hugepages); without this, rings are in huge pages where the kernel finds some
    #[arg(long)]
    pub hugepages: bool,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Stop after this many frames, those in the file if there is one; frames captured until the sources have stopped
    /// are "after limit" in the ledger, not lost
    #[arg(short = 'c', long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// How long a frame waits for older ones from other rings, unless its own ring is half full (--write, --print)
    #[arg(long, value_name = "TIME", default_value = "8ms", value_parser = units::duration)]
    pub merge_slack: Duration,
    /// How fast a file is replayed: max, real, or a factor such as 2x
    #[arg(long, value_name = "SPEED", default_value = "max", value_parser = units::speed)]
    pub speed: Speed,
    /// Do not wait for slow readers when replaying a file
    #[arg(long)]
    pub no_wait: bool,
    /// Print one JSON object at the end, on standard output, or on standard error with --write -
    #[arg(long)]
    pub json: bool,
    /// Exit with status 1 if any frame was lost
    #[arg(long)]
    pub fail_on_loss: bool,
    /// Time frames from the stamps of `weir gen --stamp` to the consumer; hidden: for the bench
    #[arg(long, value_enum, value_name = "HOW", hide = true)]
    pub latency: Option<LatencyName>,
    #[command(flatten)]
    pub tcpdump: TcpdumpFlags,
}

impl CaptureArgs {
    /// How long frames are merged over unless told otherwise.
    pub const MERGE_SLACK: Duration = Duration::from_millis(8);

    /// What to type instead of a flag of tcpdump's, if there is one.
    pub fn tcpdump_hint(&self) -> Option<String> {
        let words: Vec<String> = self.sources.iter().map(SourceName::to_string).collect();
        self.tcpdump.hint(&words)
    }
}
