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

use crate::feeds::FeedName;
use crate::source_name::SourceName;
use crate::tcpdump_flags::TcpdumpFlags;
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
    /// Zero-copy where the driver can
    Best,
    /// The kernel copies
    Copy,
    /// Zero-copy or an error
    ZeroCopy,
}

/// Sources of stamps by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimestampName {
    /// When the frame comes to the hook
    Hook,
    /// When it is copied
    Copy,
    /// When the driver says, if that is a time of day
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
    /// any or 'vnet*' (all that fit, as one source), netns:NAME/eth0, file:TRACE.pcapng, gen:size=64,flows=1000
    // One at least; but of those who name it as for tcpdump, what to type instead is the better answer.
    #[arg(value_name = "SOURCE")]
    pub sources: Vec<SourceName>,
    /// Print one line a frame; its time of day is UTC
    #[arg(long)]
    pub print: bool,
    /// Count frames, too, beside --print and --write: what is done without them
    #[arg(long)]
    pub count: bool,
    /// Write a pcapng file, whatever its name (- for a pipe), rings merged in time order; ends when the disk
    /// has it. Frames of several link types go to a file each: out.pcapng, out.raw-ip.pcapng
    #[arg(short, long, value_name = "PATH")]
    pub write: Option<PathBuf>,
    /// Permissions of files that --write makes, octal, less the umask
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = units::file_mode, requires = "write")]
    pub file_mode: u32,
    /// Which frames, as tcpdump has it: 'tcp port 80'. It acts where the frames come in, in the kernel if it can
    #[arg(long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// One of several shares of the sources' frames, each with rings of its own: 'web: tcp port 80', 'dns: udp
    /// port 53, snaplen 128'; with commas also in, out or both, and sample N or flows N
    #[arg(long, value_name = "NAME: EXPR, ...")]
    pub feed: Vec<FeedName>,
    /// Wait for interfaces that are not there or down, and take them up again each time they come back
    #[arg(long)]
    pub follow: bool,
    /// A socket to change this capture by, while it runs: `weir filter`, `weir block`
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// How frames are taken from an interface
    #[arg(long, value_enum, default_value = "auto")]
    pub engine: EngineName,
    /// Where in the kernel the bpf engine takes frames
    #[arg(long, value_enum)]
    pub hook: Option<HookName>,
    /// How TC programs are attached; hidden: for tests of what kernels before 6.6 need
    #[arg(long, value_enum, default_value = "best", hide = true)]
    pub tc_attach: TcAttachName,
    /// RX queues to take frames from: all, or 0-3
    #[arg(long, value_name = "QUEUES", default_value = "all", value_parser = units::queues)]
    pub queues: weir_capture::af_xdp::Queues,
    /// Threads that share each queue, a ring each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub copiers: u32,
    /// Who copies frames out of the driver's memory
    #[arg(long, value_enum, default_value = "best")]
    pub xdp_mode: XdpModeName,
    /// When a frame is stamped; an engine without a hook stamps when it copies, and engines without this flag at the
    /// hook
    #[arg(long, value_enum, default_value = "hook")]
    pub timestamp: TimestampName,
    /// Frames end here instead of going on to the stack, also those that no feed takes; for monitoring ports,
    /// and of bpf at XDP
    #[arg(long)]
    pub consume: bool,
    /// Consume an interface that has an address or carries the default route, too: this machine is cut off there
    #[arg(long)]
    pub yes: bool,
    /// Most bytes kept of a frame
    #[arg(short, long, value_name = "BYTES", default_value_t = CAPLEN_MAX)]
    pub snaplen: u32,
    /// Which frames are offered at all, seen from this machine; a file's by what it says of them
    #[arg(long, value_enum, default_value = "both")]
    pub direction: DirectionName,
    /// Memory of a feed's rings, shared by its CPUs [default: 64MiB, more above 16 CPUs]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    pub ring_size: Option<u64>,
    /// Keep the threads that take frames, and so the rings' memory, on these CPUs: 0-3,8, or node:1 for those of a
    /// NUMA node [default: any]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Leave an interface's promiscuous mode alone
    #[arg(short = 'p', long)]
    pub no_promiscuous: bool,
    /// Record the NIC queue of every frame
    #[arg(long)]
    pub record_queue: bool,
    /// Take memory in huge pages, which most NICs need
    #[arg(long)]
    pub hugepages: bool,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Stop after this many frames, those of the file if there is one; what comes until the sources stop is "after
    /// limit" in the ledger, not lost
    #[arg(short = 'c', long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// How long a frame waits for older ones of another ring, unless its own is half full (--write, --print)
    #[arg(long, value_name = "TIME", default_value = "8ms", value_parser = units::duration)]
    pub merge_slack: Duration,
    /// How fast a file is replayed: max, real, or a factor such as 2x
    #[arg(long, value_name = "SPEED", default_value = "max", value_parser = units::speed)]
    pub speed: Speed,
    /// Let a file overtake slow readers instead of waiting for them
    #[arg(long)]
    pub no_wait: bool,
    /// End with one JSON object on standard output; on standard error if --write - has that
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
