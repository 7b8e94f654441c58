//! The command line: what the user typed, checked for form only.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use weir_capture::engines::ENGINES;
use weir_capture::engines::declaration::{Declaration, Takes};
use weir_capture::replay::Speed;
use weir_frame::record::CAPLEN_MAX;
use weir_lab::generator::sizes::Sizes;
use weir_probe::CpuList;

use crate::feeds::FeedName;
use crate::source_name::SourceName;
use crate::tcpdump_flags::TcpdumpFlags;
use crate::units::{self, Cpus, FrameRate};

/// Capture a link once, read it many times, count every frame.
#[derive(Parser, Debug)]
#[command(name = "weir", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The command line of this build: help names the engines that heed a flag.
pub fn command() -> clap::Command {
    Cli::command().mut_subcommand("capture", |capture| {
        capture.mut_args(|argument| {
            let more = match argument.get_long() {
                Some(long) => engines_of(&format!("--{long}")),
                None => examples_of_devices(),
            };
            let help = argument.get_help().cloned();
            match help.filter(|_| !more.is_empty()) {
                Some(help) => argument.help(format!("{help}{more}")),
                None => argument,
            }
        })
    })
}

/// The live engines that heed a flag, for help; nothing if it is no flag of engines.
fn engines_of(flag: &str) -> String {
    let heeding = ENGINES.into_iter().filter(|engine| engine.is_live() && engine.heeds(flag));
    match &heeding.map(|engine| engine.name).collect::<Vec<_>>()[..] {
        [] => String::new(),
        [one] => format!(" ({one} engine)"),
        [some @ .., last] => format!(" ({} and {last} engines)", some.join(", ")),
    }
}

fn examples_of_devices() -> String {
    let example = |engine: &&Declaration| match engine.takes {
        Takes::Devices { example, .. } => Some(format!(", or {example}")),
        _ => None,
    };
    ENGINES.iter().filter_map(example).collect()
}

/// What was typed.
///
/// # Errors
/// What clap says, which is help, too.
pub fn parse() -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&command().try_get_matches()?)
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Capture frames: count them, print them, or write them to a pcapng file
    Capture(Box<CaptureArgs>),
    /// Change the filter of a running capture
    Filter(FilterArgs),
    /// Exclude frames from a running capture by address, prefix or flow; the traffic goes on
    Block(BlockArgs),
    /// Send numbered frames out of an interface and say exactly how many went
    Gen(GenArgs),
    /// Show the main job on live traffic that stays on this machine (without root: on a trace)
    Demo(DemoArgs),
    /// Say what Weir can do on this machine, what stands in its way, and how to capture
    Doctor(DoctorArgs),
    /// Check and measure Weir on this machine
    Lab(LabArgs),
    /// Write man pages and shell completions, for whoever installs or packages Weir
    #[command(hide = true)]
    Pages(PagesArgs),
}

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

/// `weir filter`.
#[derive(Args, Debug)]
pub struct FilterArgs {
    /// The filter, as tcpdump has it: in quotes, or its words; '' takes every frame
    #[arg(value_name = "EXPR", required = true)]
    pub filter: Vec<String>,
    /// The capture's socket: what it was given as --control
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// Which of its feeds, if they have names
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weir block`.
#[derive(Args, Debug)]
pub struct BlockArgs {
    /// What to leave out: 10.0.0.1, 2001:db8::/32, or both directions of 'tcp 10.0.0.1:80 10.0.0.2:4711'; none: show
    /// what is left out
    #[arg(value_name = "ENTRY")]
    pub entries: Vec<String>,
    /// More of them, one a line; what is behind a # is passed over
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Take all the entries given out of the list
    #[arg(long)]
    pub remove: bool,
    /// Take everything out of it
    #[arg(long, conflicts_with_all = ["entries", "file", "remove"])]
    pub clear: bool,
    /// The capture's socket: what it was given as --control
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// Which of its feeds, if they have names
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weir gen`.
#[derive(Args, Debug)]
pub struct GenArgs {
    /// The interface that sends: eth0 or netns:NAME/eth0
    #[arg(value_name = "IFACE")]
    pub iface: SourceName,
    /// Bytes of a frame on the wire, with its FCS (64 is 60 bytes in memory); or a mix: 64:7,594:4,1518:1,
    /// which is also called imix
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = units::sizes)]
    pub size: Sizes,
    /// 5-tuples: single, multi (every frame its own), or a number
    #[arg(long, default_value = "single", value_parser = units::flows)]
    pub flows: weir_lab::generator::Flows,
    /// max, or 1Mpps, or 1Gbps of frames with FCS, without preamble and gap; of all threads together, and of a
    /// file whatever its stamps say
    #[arg(long, default_value = "max", value_parser = units::frame_rate)]
    pub rate: FrameRate,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Stop after this many frames
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// Threads that send, sharing rate and numbers [default: one for each CPU of --cpu, else 1]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub threads: Option<usize>,
    /// The CPUs that send, one for each thread: 0, or 0,2-3
    #[arg(long, value_name = "LIST", value_parser = units::cpus)]
    pub cpu: Option<Cpus>,
    /// Put the time of sending in every frame
    #[arg(long)]
    pub stamp: bool,
    /// Send through AF_PACKET even where the kernel generator works
    #[arg(long)]
    pub af_packet: bool,
    /// Send the frames of a pcap or pcapng file instead, in order and byte for byte, through
    /// AF_PACKET: some 0.5 million frames a second on one busy core
    #[arg(
        long,
        value_name = "TRACE",
        conflicts_with_all = ["size", "flows", "stamp", "af_packet"]
    )]
    pub file: Option<PathBuf>,
    /// How fast the file is sent by its stamps: max, real, or a factor such as 2x; or give a --rate
    #[arg(
        long,
        value_name = "SPEED",
        default_value = "max",
        value_parser = units::speed,
        requires = "file",
        conflicts_with = "rate"
    )]
    pub speed: Speed,
    /// How often the file is sent
    #[arg(
        long = "loop",
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "file"
    )]
    pub loops: u32,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `weir demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// How long traffic flows
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration)]
    pub duration: Duration,
    /// Where the pcapng file goes
    #[arg(long, value_name = "PATH", default_value = "weir-demo.pcapng")]
    pub write: PathBuf,
    /// Replay the bundled trace even as root
    #[arg(long)]
    pub replay: bool,
}

/// `weir doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Interfaces to look at: eth0, netns:NAME/eth0 [default: all that are here]
    #[arg(value_name = "IFACE")]
    pub ifaces: Vec<SourceName>,
    /// End with one JSON object on standard output, and nothing else
    #[arg(long)]
    pub json: bool,
    /// The interfaces only receive copies of traffic: settings may change what this machine's own would use
    #[arg(long)]
    pub monitoring_port: bool,
    /// Carry out the settings of the plan; former values are kept under /run/weir-doctor
    #[arg(long, conflicts_with = "undo")]
    pub apply: bool,
    /// Give back what --apply changed
    #[arg(long)]
    pub undo: bool,
}

/// `weir lab`.
#[derive(Args, Debug)]
pub struct LabArgs {
    /// What to check.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The lab's verbs.
#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// Load every BPF program with this kernel's verifier; attach none
    LoadBpf,
    /// Measure every live engine beside other tools, TCP while it is watched, the ring, and idling
    Bench(BenchArgs),
    /// Copy frames off a synthetic RX ring that is never empty, with threads that share it
    Copiers(CopiersArgs),
    /// Hold every live engine's ledger against its generator, at full rate
    Soak(SoakArgs),
    /// Add and remove feeds, attach and detach consumers, while a source runs at full rate
    Churn(ChurnArgs),
}

/// `weir lab bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Two rounds of one second: to see that it works, not for figures
    #[arg(long)]
    pub quick: bool,
    /// All frame sizes from 64 to 1518 bytes
    #[arg(long)]
    pub full: bool,
    /// Rounds of every measurement [default: 5, with --full 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Length of every measurement [default: 2, with --full 1.5]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub seconds: Option<Duration>,
    /// Length of a trial in the search for the highest rate without loss [default: 2]; RFC 2544 has 60
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub trial: Option<Duration>,
    /// How often that rate is searched [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub searches: Option<u32>,
    /// Another build of weir, to be held against this one in every row that wire has of it
    #[arg(long, value_name = "PROGRAM")]
    pub before: Option<PathBuf>,
    /// Frames that come one by one to a consumer that sleeps [default: 50]; 10,000 take 18 minutes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub singles: Option<u64>,
    /// One part only: wire, before, zero-loss, latency, iperf3, memory, command, copiers, churn, filter, idle, wake-ups
    /// or any
    #[arg(long, value_name = "NAME")]
    pub only: Option<weir_lab::bench::Section>,
    /// Write everything, round by round, to a JSON file (- for standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with plots, too
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// `weir lab copiers`.
#[derive(Args, Debug)]
pub struct CopiersArgs {
    /// Threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub copiers: u32,
    /// Bytes of a frame on the wire, with its FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(64..=1796))]
    pub size: u32,
    /// How long
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = units::duration)]
    pub seconds: Duration,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// `weir lab churn`.
#[derive(Args, Debug)]
pub struct ChurnArgs {
    /// Where the frames come from; bpf needs root
    #[arg(long, value_enum, default_value = "gen")]
    pub source: ChurnSource,
    /// Feeds
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub feeds: u64,
    /// Consumers
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub consumers: u64,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// What `weir lab churn` churns on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChurnSource {
    /// Frames made in memory
    Gen,
    /// A veth pair under the generator's load, watched at TC
    Bpf,
}

/// `weir lab soak`.
#[derive(Args, Debug)]
pub struct SoakArgs {
    /// How long each engine runs at each frame size
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = units::duration)]
    pub seconds: Duration,
}

/// `weir pages`.
#[derive(Args, Debug)]
pub struct PagesArgs {
    /// The directory that takes them; it must be there
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
