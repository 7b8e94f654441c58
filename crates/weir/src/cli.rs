//! The command line: what the user typed, checked for form only.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::source_name::SourceName;
use crate::units::{self, FrameRate};

/// Capture a link once, read it many times, count every frame.
#[derive(Parser, Debug)]
#[command(name = "weir", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Capture frames: count them, print them, or write them to a pcapng file
    Capture(CaptureArgs),
    /// Send numbered frames out of an interface and say exactly how many went
    Gen(GenArgs),
    /// Show the main job on live traffic that stays on this machine (without root: on a trace)
    Demo(DemoArgs),
    /// Check and measure Weir on this machine
    Lab(LabArgs),
}

/// Engines by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// The best that works here, and why
    Auto,
    /// BPF programs that copy frames into the ring in the kernel
    Bpf,
    /// A TPACKET_V3 socket
    #[value(name = "af_packet")]
    AfPacket,
}

/// Hooks by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HookName {
    /// TC ingress and egress: passive, both directions
    Tc,
    /// XDP: in the driver, received frames only
    Xdp,
}

/// Ways to attach TC programs by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TcAttachName {
    /// tcx links where the kernel has them
    Best,
    /// A clsact filter, as on kernels before 6.6
    Clsact,
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
pub struct CaptureArgs {
    /// Where frames come from: eth0, netns:NAME/eth0, file:TRACE.pcapng, gen:size=64,flows=1000
    #[arg(required = true, value_name = "SOURCE")]
    pub sources: Vec<SourceName>,
    /// Print one line a frame
    #[arg(long)]
    pub print: bool,
    /// Write a pcapng file (- for a pipe), rings merged in time order
    #[arg(long, value_name = "PATH")]
    pub write: Option<PathBuf>,
    /// How frames are taken from an interface
    #[arg(long, value_enum, default_value = "auto")]
    pub engine: EngineName,
    /// Where in the kernel the bpf engine takes frames
    #[arg(long, value_enum)]
    pub hook: Option<HookName>,
    /// How TC programs are attached; hidden: for tests of what kernels before 6.6 need
    #[arg(long, value_enum, default_value = "best", hide = true)]
    pub tc_attach: TcAttachName,
    /// Frames end here instead of going on to the stack (bpf engine at XDP, for monitoring ports)
    #[arg(long)]
    pub consume: bool,
    /// Most bytes kept of a frame
    #[arg(long, value_name = "BYTES", default_value_t = 262_144)]
    pub snaplen: u32,
    /// Which frames, seen from this machine
    #[arg(long, value_enum, default_value = "both")]
    pub direction: DirectionName,
    /// Memory of a source's rings, shared by its CPUs [default: 64MiB, more above 16 CPUs]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes)]
    pub ring_size: Option<u64>,
    /// Leave promiscuous mode alone
    #[arg(long)]
    pub no_promiscuous: bool,
    /// Record the NIC queue of every frame (bpf engine)
    #[arg(long)]
    pub record_queue: bool,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Stop after this many frames
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// How long a frame waits for older ones of another ring (--write, --print)
    #[arg(long, value_name = "TIME", default_value = "8ms", value_parser = units::duration)]
    pub merge_slack: Duration,
    /// How fast a file is replayed: max, real, or a factor such as 2x
    #[arg(long, value_name = "SPEED", default_value = "max", value_parser = units::speed)]
    pub speed: units::Speed,
    /// Let a file overtake slow readers instead of waiting for them
    #[arg(long)]
    pub no_wait: bool,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Exit with status 1 if any frame was lost
    #[arg(long)]
    pub fail_on_loss: bool,
}

/// `weir gen`.
#[derive(Args, Debug)]
pub struct GenArgs {
    /// The interface that sends: eth0 or netns:NAME/eth0
    #[arg(value_name = "IFACE")]
    pub iface: SourceName,
    /// Bytes of a frame on the wire, with its FCS: 64 is 60 bytes in memory
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub size: u32,
    /// 5-tuples: single, multi (every frame its own), or a number
    #[arg(long, default_value = "single", value_parser = units::flows)]
    pub flows: weir_lab::generator::Flows,
    /// max, or 1Mpps, or 1Gbps
    #[arg(long, default_value = "max", value_parser = units::frame_rate)]
    pub rate: FrameRate,
    /// Stop after this time
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
    /// Stop after this many frames
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// The CPU that sends
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Put the time of sending in every frame
    #[arg(long)]
    pub stamp: bool,
    /// Send through AF_PACKET even where the kernel generator works
    #[arg(long)]
    pub af_packet: bool,
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
    /// Hold every live engine's ledger against its generator, at full rate
    Soak(SoakArgs),
}

/// `weir lab bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Two rounds of one second: to see that it works, not for figures
    #[arg(long)]
    pub quick: bool,
    /// Rounds of every measurement [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Length of every measurement [default: 4]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub seconds: Option<Duration>,
    /// One part only: wire, iperf3, memory or idle
    #[arg(long, value_name = "NAME")]
    pub only: Option<weir_lab::bench::Section>,
    /// Write everything, round by round, to a JSON file (- for standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `weir lab soak`.
#[derive(Args, Debug)]
pub struct SoakArgs {
    /// How long each engine runs at each frame size
    #[arg(long, value_name = "TIME", default_value = "30", value_parser = units::duration)]
    pub seconds: Duration,
}
